"""``[[redis.shards]]``: servers beside that of ``[redis] url``, each with its own queues.

Each shard is a whole Redis as forkq and Sidekiq know it. The name of a queue decides which shard
its jobs are pushed to (docs/decisions/017). Without ``[[redis.shards]]`` there are no shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from ..errors import ConfigError
from ..limits.patterns import is_pattern, matches_any
from ..limits.rules import Rulebook
from ..wire.password_source import PasswordSource
from ..wire.redis_url import (
    EMBEDDED,
    checked_url,
    database_of,
    redacted_url,
    sentinel_url,
    split_url,
)
from .capsule import Capsule, check_queue
from .password_keys import PASSWORD_KEYS_OF_SHARD, password_source
from .schema import Key, Rows, shown_path
from .settings import Origin

# The shard of ``[redis] url``: it has the queues that no other shard has.
DEFAULT_SHARD: Final = "default"

_WILDCARD: Final = re.compile(r"[*?[]")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Shard:
    """One server. ``queues`` are names and patterns; the default shard has all others."""

    name: str
    url: str = field(repr=False)
    queues: tuple[str, ...] = ()
    password_source: PasswordSource | None = None


def _checked_name(name: str) -> str:
    if name == DEFAULT_SHARD:
        raise ConfigError(f'"{name}" is the shard of [redis] url: choose another name')
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f'"{name}" is no name for a shard: expected letters, digits and _ - only')
    return name


def _checked_url(url: str) -> str:
    if url == EMBEDDED:
        raise ConfigError("a shard is a server of yours; the embedded one has none")
    return checked_url(url)


def _checked_queues(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ConfigError("expected at least one queue or pattern, found none")
    for name in names:
        check_queue(name)
    return names


_QUEUES: Final = Meta(description="a list of queues and patterns")
_ROW: Final[dict[str, object]] = {
    "name": Annotated[str, Meta(description="a name"), _checked_name, Key(
        "What commands, process titles and logs call a further server ([sharding](sharding.md)).",
        default="required",
    )],
    "url": Annotated[str, Meta(description="the address of a server"), _checked_url, Key(
        "Its address, of the same forms as `url`.", default="required"
    )],
    **PASSWORD_KEYS_OF_SHARD,
    "queues": Annotated[tuple[str, ...], _QUEUES, _checked_queues, Key(
        "The queues and patterns whose jobs are pushed there; the first shard that has a queue "
        "counts, and `url` has all others.",
        default="required",
    )],
}  # fmt: skip


def _name(row: Mapping[str, Any]) -> object:
    return row.get("name")


ROWS: Final = Rows(_ROW, required=("name", "url", "queues"), name=_name)


def shards_of(
    default: Shard, rows: Sequence[Mapping[str, Any]], given: Mapping[str, Origin], folder: Path
) -> tuple[Shard, ...]:
    """The default shard and those of ``rows``; none without rows, or if a flag names the one server
    that is meant. Relative paths start at ``folder``. Raises ConfigError for shards that exclude
    each other."""
    of_url = given.get("redis.url")
    if not rows or (of_url is not None and of_url.kind == "flag"):
        return ()
    shards = (default, *(_shard(row, n, given, folder) for n, row in enumerate(rows)))
    for number, shard in enumerate(shards[1:]):
        place, before = _ShardOrigin(given, number), shards[: number + 1]
        _refuse_embedded(shards[0], place)
        _refuse_same_server(shard, before, place)
        _refuse_same_queues(shard, before, place)
    return shards


def _shard(row: Mapping[str, Any], number: int, given: Mapping[str, Origin], folder: Path) -> Shard:
    source = password_source(row, row["url"], given, f"redis.shards[{number}]", folder)
    return Shard(row["name"], row["url"], row["queues"], source)


@dataclass(frozen=True, slots=True)
class _ShardOrigin:
    """The place of the shard with that number in forkq.toml."""

    given: Mapping[str, Origin]
    number: int

    def error(self, key: str, text: str) -> ConfigError:
        origin = self.given[f"redis.shards[{self.number}].{key}"]
        return ConfigError(f"{origin}: {text}")


def _refuse_embedded(default: Shard, place: _ShardOrigin) -> None:
    if default.url == EMBEDDED:
        raise place.error(
            "url", "[redis] url is embedded, which has no shards: give it the address of a server"
        )


def _refuse_same_server(shard: Shard, others: Iterable[Shard], place: _ShardOrigin) -> None:
    for other in others:
        if server_of(other.url) == server_of(shard.url):
            raise place.error(
                "url",
                f"{redacted_url(shard.url)} is the server of the shard {other.name} too; each "
                "shard needs a server of its own",
            )


def server_of(url: str) -> tuple[str, str, int]:
    """The parts of a URL that tell two servers apart: neither user nor password, nor any option but
    the database."""
    if url == EMBEDDED:
        return EMBEDDED, "", 0
    parts, sentinel = split_url(url), sentinel_url(url)
    hosts = parts.netloc.rpartition("@")[2].lower().removesuffix(":6379")
    place = parts.path if parts.scheme == "unix" else hosts
    return place, sentinel.name if sentinel else "", database_of(url)


def _refuse_same_queues(shard: Shard, others: Iterable[Shard], place: _ShardOrigin) -> None:
    for other in others:
        for name in shard.queues:
            if matches_any(name, other.queues):
                raise place.error(
                    "queues", f'"{name}" is in the shard {other.name} already, which comes first'
                )


def check_blocking_on(shards: Sequence[Shard], book: Rulebook, given: Mapping[str, Origin]) -> None:
    """Raises ConfigError if a blocking queue names one of another shard: no server knows of
    both."""
    named = (
        (name, later)
        for name, rules in book.entries.items()
        for later in (rules.blocking if isinstance(rules.blocking, tuple) else ())
        if shards and not is_pattern(name) and not is_pattern(later)
    )
    for name, later in named:
        here, there = shard_of(shards, name).name, shard_of(shards, later).name
        if here != there:
            raise ConfigError(
                f'{given[shown_path(("blocking", name))]}: "{name}" is on the shard {here} and '
                f'"{later}" on {there}, and a queue can make queues of its own shard wait only'
            )


def shard_of(shards: Sequence[Shard], queue: str) -> Shard:
    """The shard that jobs of ``queue`` are pushed to: the first that lists it, else the default."""
    return next((one for one in shards[1:] if matches_any(queue, one.queues)), shards[0])


def place_of_url(shard: str) -> str:
    """The key of forkq.toml with the address of that shard; "" is the only server."""
    if not shard:
        return "[redis] url or --redis"
    if shard == DEFAULT_SHARD:  # --redis would leave the others out
        return "[redis] url or FORKQ_REDIS"
    return f'the url of the shard "{shard}" in [[redis.shards]]'


def spread(capsules: Sequence[Capsule], shards: Sequence[Shard]) -> tuple[Capsule, ...]:
    """The capsules as they are forked: each once for each shard that has queues of it.

    A capsule serves all of its queues on each of these: jobs that a change of the configuration, or
    ``retry_queue``, has left on another shard run all the same.
    """
    if not shards:
        return tuple(capsules)
    return tuple(_on(capsule, shard) for capsule in capsules for shard in _touched(capsule, shards))


def _touched(capsule: Capsule, shards: Sequence[Shard]) -> list[Shard]:
    names = {name for queue in capsule.queue_names for name in _names(queue, shards)}
    return [shard for shard in shards if shard.name in names]


def _names(queue: str, shards: Sequence[Shard]) -> list[str]:
    """The shards to which jobs of a queue, or of the queues of a pattern, may be pushed. Jobs of a
    pattern may go to any shard or, if a shard has the very same pattern, to that one or an earlier
    one."""
    if not is_pattern(queue):
        return [shard_of(shards, queue).name]
    for number, shard in enumerate(shards):
        if queue in shard.queues:
            before = [(one.name, name) for one in shards[1:number] for name in one.queues]
            return [*(one for one, name in before if _may_share(queue, name)), shard.name]
    return [shard.name for shard in shards]


def _may_share(pattern: str, name: str) -> bool:
    """Whether one queue may match both names. Of two patterns the text before the wildcards is
    compared."""
    if not is_pattern(name):
        return matches_any(name, (pattern,))
    mine, theirs = (_WILDCARD.split(one)[0] for one in (pattern, name))
    return mine.startswith(theirs) or theirs.startswith(mine)


def _on(capsule: Capsule, shard: Shard) -> Capsule:
    name = capsule.name if shard.name == DEFAULT_SHARD else f"{capsule.name}@{shard.name}"
    return replace(capsule, name=name, shard=shard.name)
