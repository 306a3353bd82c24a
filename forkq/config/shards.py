"""``[[redis.shards]]`` and ``[redis] cluster_shards``: where jobs are beside ``[redis] url``.

Each shard is one server with one prefix: a whole Redis as forkq knows it. The name of a queue
decides which shard its jobs are pushed to (docs/decisions/017). Without these keys there are no
shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ..errors import ConfigError
from ..limits.patterns import is_pattern, matches_any
from ..limits.rules import Rulebook
from ..values import replace
from ..wire.password_source import PasswordSource
from ..wire.redis_url import (
    EMBEDDED,
    checked_url,
    database_of,
    is_cluster,
    redacted_url,
    sentinel_url,
    slot_of,
    split_url,
)
from ..wire.spread import part_of
from .capsule import Capsule, check_queue
from .cluster_shards import number_of, prefix_of
from .password_keys import PASSWORD_KEYS, PASSWORD_KEYS_OF_SHARD, password_source
from .schema import Key, Rows, shown_path
from .settings import Origin

# The shard of ``[redis] url``: it has the queues that no other shard has.
DEFAULT_SHARD: Final = "default"

_WILDCARD: Final = re.compile(r"[*?[]")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Shard:
    """One server with one prefix. ``queues`` are names and patterns; the default shard has all
    others. ``spread``: the queues of ``[spread]`` that have a part here. ``has_url``: its address
    is its own, and not that of ``[redis] url``."""

    name: str
    url: str = field(repr=False)
    queues: tuple[str, ...] = ()
    password_source: PasswordSource | None = None
    prefix: str = ""
    has_url: bool = True
    spread: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[object, ...]:
        """What tells the keys of two shards apart."""
        return (*server_of(self.url), self.prefix)


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
        "Its address, of the same forms as `url`.", default="`[redis] url`"
    )],
    **PASSWORD_KEYS_OF_SHARD,
    "prefix": Annotated[str, Key(
        "Put before each of its keys ([a cluster](sharding.md#one-cluster-for-all-shards)).",
        default="`[redis] prefix`; of a shard of `cluster_shards` one that forkq makes",
    )],
    "queues": Annotated[tuple[str, ...], _QUEUES, _checked_queues, Key(
        "The queues and patterns whose jobs are pushed there; the first shard that has a queue "
        "counts, and the default shard has all others.",
        default="required",
    )],
}  # fmt: skip


def _name(row: Mapping[str, Any]) -> object:
    return row.get("name")


ROWS: Final = Rows(_ROW, required=("name", "queues"), name=_name)


def shards_of(
    default: Shard,
    rows: Sequence[Mapping[str, Any]],
    cluster_shards: int,
    given: Mapping[str, Origin],
    folder: Path,
) -> tuple[Shard, ...]:
    """The default shard, those of ``rows``, and those of ``cluster_shards`` that no row has; none
    without either, or if a flag names the one server that is meant. Relative paths start at
    ``folder``. Raises ConfigError for shards that exclude each other."""
    of_url = given.get("redis.url")
    is_one = not rows and cluster_shards == 1
    if is_one or (of_url is not None and of_url.kind == "flag"):
        return ()
    made = _made_shards(default, cluster_shards, given)
    listed = [_shard(default, made, row, _ShardOrigin(given, n), folder)
              for n, row in enumerate(rows)]  # fmt: skip
    for number, shard in enumerate(listed):
        _check(shard, (default, *listed[:number]), _ShardOrigin(given, number))
    names = {shard.name for shard in listed}
    return (default, *listed, *(one for name, one in made.items() if name not in names))


def _made_shards(default: Shard, count: int, given: Mapping[str, Origin]) -> dict[str, Shard]:
    """The shards of ``[redis] cluster_shards`` by name, without queues."""
    if count == 1:
        return {}
    origin = given["redis.cluster_shards"]
    if default.url == EMBEDDED:
        raise ConfigError(f"{origin}: the embedded server has no shards: give [redis] url")
    numbers = range(1, count)
    try:
        made = {f"s{number}": prefix_of(default.prefix, number) for number in numbers}
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
    return {name: _beside(default, name, prefix) for name, prefix in made.items()}


def _beside(default: Shard, name: str, prefix: str, queues: tuple[str, ...] = ()) -> Shard:
    """A shard on the server of the default one."""
    return replace(default, name=name, prefix=prefix, queues=queues, has_url=False)


def _shard(
    default: Shard,
    made: Mapping[str, Shard],
    row: Mapping[str, Any],
    place: _ShardOrigin,
    folder: Path,
) -> Shard:
    """The shard of one row."""
    if row["name"] in made:
        _refuse_own_place(row, place)
        return replace(made[row["name"]], queues=row["queues"])
    if "url" not in row:
        return _on_same_server(default, made, row, place)
    source = password_source(row, row["url"], place.given, place.path, folder)
    prefix = row.get("prefix", default.prefix)
    return Shard(row["name"], row["url"], row["queues"], source, prefix)


def _refuse_own_place(row: Mapping[str, Any], place: _ShardOrigin) -> None:
    for key in ("url", "prefix", *PASSWORD_KEYS):
        if key in row:
            raise place.error(
                key,
                f'"{row["name"]}" is one of [redis] cluster_shards, which gives it its place: '
                f"remove `{key}`, or choose another name",
            )


def _on_same_server(
    default: Shard, made: Mapping[str, Shard], row: Mapping[str, Any], place: _ShardOrigin
) -> Shard:
    """A shard at ``[redis] url``, with a prefix of its own."""
    for key in PASSWORD_KEYS:
        if key in row:
            raise place.error(key, "it is for the server of a `url`, which this shard has not")
    if "prefix" not in row:
        raise place.error("name", _nowhere(row["name"], len(made) + 1))
    return _beside(default, row["name"], row["prefix"], row["queues"])


def _nowhere(name: str, count: int) -> str:
    remedy = "give it a `url`, or a `prefix` on the server of [redis] url"
    number = number_of(name)
    if count == 1 and number == 0:
        return f'the shard "{name}" has no place: {remedy}'
    there = f"the shards s1 to s{count - 1}" if count > 2 else "the shard s1"
    if count == 1:
        there = "no shard but the default one"
    wanted = f", or set [redis] cluster_shards = {number + 1}" if number else ""
    return f'[redis] cluster_shards = {count} makes {there}, and not "{name}": {remedy}{wanted}'


class _ShardOrigin(msgspec.Struct, frozen=True):
    """The place of the shard with that number in forkq.toml."""

    given: Mapping[str, Origin]
    number: int

    @property
    def path(self) -> str:
        """The name of its table."""
        return f"redis.shards[{self.number}]"

    def error(self, key: str, text: str) -> ConfigError:
        """What is wrong at its key, or at its name if the file lacks that key."""
        found = self.given.get(f"{self.path}.{key}") or self.given[f"{self.path}.name"]
        return ConfigError(f"{found}: {text}")


def _check(shard: Shard, others: Sequence[Shard], place: _ShardOrigin) -> None:
    """Raises ConfigError if the shard excludes one of those before it."""
    if others[0].url == EMBEDDED:
        raise place.error(
            "url", "[redis] url is embedded, which has no shards: give it the address of a server"
        )
    _refuse_same_place(shard, others, place)
    _refuse_same_slot(shard, others, place)
    _refuse_same_queues(shard, others, place)


def _refuse_same_place(shard: Shard, others: Iterable[Shard], place: _ShardOrigin) -> None:
    for other in others:
        if other.place == shard.place:
            shown = redacted_url(shard.url)
            if shard.has_url:
                text = f"{shown} is the server of the shard {other.name} too; each shard needs a "
                raise place.error("url", f"{text}server of its own, or a prefix of its own")
            text = f'the prefix "{shard.prefix}" at {shown} is that of the shard {other.name} too'
            raise place.error("prefix", f"{text}; choose another one")


def _refuse_same_slot(shard: Shard, others: Iterable[Shard], place: _ShardOrigin) -> None:
    """In a cluster, two prefixes with the same slot are on one node for ever."""
    if not is_cluster(shard.url):
        return
    try:
        slot = slot_of(shard.prefix)
    except ConfigError as error:
        raise place.error("prefix", str(error)) from None
    for other in others:
        same = server_of(other.url) == server_of(shard.url)
        if same and slot_of(other.prefix) == slot:
            raise place.error(
                "prefix",
                f'"{shard.prefix}" has the slot {slot} of the shard {other.name}, so both are '
                "always on one node; choose another name in the braces",
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
        here, there = (parts_of(shards, queue)[0].name for queue in (name, later))
        if here != there:
            raise ConfigError(
                f'{given[shown_path(("blocking", name))]}: "{name}" is on the shard {here} and '
                f'"{later}" on {there}, and a queue can make queues of its own shard wait only'
            )


def parts_of(shards: Sequence[Shard], queue: str) -> tuple[Shard, ...]:
    """The shards that jobs of ``queue`` are pushed to: those of its parts, by name, if it is
    spread; else the first shard that lists it, or the default one."""
    parts = sorted((one for one in shards if queue in one.spread), key=lambda one: one.name)
    if parts:
        return tuple(parts)
    return (next((one for one in shards[1:] if matches_any(queue, one.queues)), shards[0]),)


def shard_of(shards: Sequence[Shard], queue: str, key: str) -> Shard:
    """The shard that a job is pushed to; ``key`` chooses the part of a spread queue."""
    parts = {one.name: one for one in parts_of(shards, queue)}
    return parts[part_of([*parts], key)]


def place_of_url(name: str, shards: Sequence[Shard]) -> str:
    """The key of forkq.toml with the address of that shard; "" is the only server."""
    if not name:
        return "[redis] url or --redis"
    if not any(shard.name == name and shard.has_url for shard in shards[1:]):
        return "[redis] url or FORKQ_REDIS"  # --redis would leave the others out
    return f'the url of the shard "{name}" in [[redis.shards]]'


def on_shards(capsules: Sequence[Capsule], shards: Sequence[Shard]) -> tuple[Capsule, ...]:
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
    pattern may go to each shard with a name that it may share or, if a shard has the very same
    pattern, to that one or an earlier one."""
    if not is_pattern(queue):
        return [one.name for one in parts_of(shards, queue)]
    found = [one.name for one in shards if any(matches_any(name, (queue,)) for name in one.spread)]
    for shard in shards[1:]:
        if any(_may_share(queue, name) for name in shard.queues):
            found.append(shard.name)
        if queue in shard.queues:
            return found
    return [shards[0].name, *found]


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
