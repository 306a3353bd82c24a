"""``[spread]``: hot queues that are over several shards, with a part on each of them.

A queue is otherwise never larger than one server (docs/decisions/035). What counts or orders the
jobs of a queue on one server cannot count or order those of its parts, so it is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta

from ..errors import ConfigError, no_such_shard
from ..limits.patterns import is_pattern, matches_any
from ..limits.rules import Rulebook
from ..values import replace
from .capsule import check_queue
from .cluster_shards import number_of
from .schema import Each, Key, shown_path
from .settings import Origin
from .shards import Shard, parts_of

_Wanted = int | tuple[str, ...]

# Which rules cannot hold over several servers: the field of Rules, and its table in forkq.toml.
_REFUSED: Final = {"limit": "limits", "rate": "rates", "blocking": "blocking"}


def _check_name(name: str) -> None:
    check_queue(name)
    if is_pattern(name):
        raise ConfigError(f'"{name}" is a pattern: name each queue that is to be spread')


def _checked(wanted: _Wanted) -> _Wanted:
    if isinstance(wanted, int) and wanted < 1:
        raise ConfigError(f"expected 1 (one shard) or more, found {wanted}")
    if isinstance(wanted, tuple) and len(set(wanted)) < 2:
        raise ConfigError(
            "expected two shards or more: a queue that is on one has its place in the `queues` of "
            "[[redis.shards]]"
        )
    return wanted


TABLE: Final = Each(
    Annotated[
        _Wanted,
        Meta(description="the number of its shards, or a list of their names"),
        _checked,
        Key(
            "Over how many shards, or over which ones, the jobs of a hot queue are spread "
            "([sharding](sharding.md#one-hot-queue-over-several-shards)); strict order holds "
            "within each of them only.",
            default="`1`",
        ),
    ],
    _check_name,
)


def with_parts(
    shards: Sequence[Shard],
    table: Mapping[str, _Wanted],
    given: Mapping[str, Origin],
) -> tuple[Shard, ...]:
    """The shards, each with the queues of ``[spread]`` that have a part there. Raises ConfigError.

    A flag that names the one server that is meant leaves out all shards, and so the parts."""
    of_url = given.get("redis.url")
    if not shards and of_url is not None and of_url.kind == "flag":
        return ()
    parts = {queue: _parts(shards, queue, wanted, given) for queue, wanted in table.items()}
    return tuple(
        replace(one, spread=tuple(queue for queue, names in parts.items() if one.name in names))
        for one in shards
    )


def _parts(
    shards: Sequence[Shard], queue: str, wanted: _Wanted, given: Mapping[str, Origin]
) -> Sequence[str]:
    """The names of the shards with a part of the queue; none if it is not spread."""
    if wanted == 1:
        return ()
    place = given[shown_path(("spread", queue))]
    _refuse_row(shards, queue, place)
    return _names(shards, queue, wanted, place)


def _names(shards: Sequence[Shard], queue: str, wanted: _Wanted, place: Origin) -> Sequence[str]:
    """The shards of the parts of one queue."""
    if isinstance(wanted, int):
        if wanted > len(shards):
            raise ConfigError(f"{place}: {_too_few(shards, queue, wanted)}")
        return _in_order(shards)[:wanted]
    known = [one.name for one in shards]
    unknown = next((name for name in wanted if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"{place}: {no_such_shard(unknown, known)}")
    return list(dict.fromkeys(wanted))


def _too_few(shards: Sequence[Shard], queue: str, wanted: int) -> str:
    there = "there are no shards"
    if shards:
        there = f"there are {len(shards)} shards ({', '.join(_in_order(shards))})"
    return (
        f'"{queue}" cannot be on {wanted} shards, {there}: set [redis] cluster_shards = {wanted}, '
        "or add [[redis.shards]]"
    )


def _in_order(shards: Sequence[Shard]) -> list[str]:
    """The names of the shards as a number counts them: the default one, those of
    ``cluster_shards`` by their numbers, then the others as the file has them. So no row that gives
    queues to one of ``cluster_shards`` changes where the parts are."""
    default, *others = (one.name for one in shards)
    return [default, *sorted(others, key=lambda name: (number_of(name) == 0, number_of(name)))]


def _refuse_row(shards: Sequence[Shard], queue: str, place: Origin) -> None:
    row = next((one.name for one in shards[1:] if queue in one.queues), None)
    if row is not None:
        raise ConfigError(
            f'{place}: "{queue}" is in the `queues` of the shard {row} too, and a queue is either '
            "there or spread: take it out of one of the two"
        )


def check_rules(shards: Sequence[Shard], book: Rulebook, given: Mapping[str, Origin]) -> None:
    """Raises ConfigError for a rule that would have to count the jobs of all parts of a queue."""
    spread = parts_by_queue(shards)
    for queue in spread:
        rules = book.of(queue)
        for field, table in _REFUSED.items():
            if getattr(rules, field):
                name = _named_by(book, field, queue)
                raise ConfigError(f"{_origin(given, table, name)}: {why_refused(queue, table)}")
    for name, rules in book.entries.items():
        blocked = rules.blocking if isinstance(rules.blocking, tuple) else ()
        for queue in (one for one in blocked if one in spread):
            place = _origin(given, "blocking", name)
            raise ConfigError(f"{place}: {why_refused(queue, 'blocking')}")


def why_refused(queue: str, table: str) -> str:
    """Why a spread queue cannot have a rule of this table, and what to do."""
    return (
        f'"{queue}" is spread over several shards ([spread]), and each counts its own jobs only, '
        f"so `{table}` cannot hold for all of them: take it out of [spread], or lift the rule"
        + ("; [process_limits] bounds each child" if table == "limits" else "")
    )


def _named_by(book: Rulebook, field: str, queue: str) -> str:
    """The entry whose rule counts for the queue: its own, or the first pattern that has it."""
    own = (name for name in (queue, *book.entries) if name in book.entries)
    return next(
        name
        for name in own
        if matches_any(queue, (name,)) and getattr(book.entries[name], field) is not None
    )


def _origin(given: Mapping[str, Origin], table: str, name: str) -> object:
    """Where a rule is: a rate may be a table."""
    path = shown_path((table, name))
    return given.get(path) or given[shown_path((table, name, "rate"))]


def parts_by_queue(shards: Sequence[Shard]) -> dict[str, tuple[str, ...]]:
    """The names of the shards with the parts of each spread queue."""
    queues = dict.fromkeys(queue for one in shards for queue in one.spread)
    return {queue: tuple(one.name for one in parts_of(shards, queue)) for queue in queues}
