"""Which periodic jobs a child publishes where there are shards: those whose queue its shard has.
The clock of that shard then pushes them, without another Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ...config.config import Config
from ...config.shards import shard_of
from ...cron.entry import Entry
from ...wire.payload import DEFAULT_QUEUE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_Entries: TypeAlias = Mapping[str, Sequence[Entry]]


def of_shard(entries: _Entries, config: Config, log: FilteringBoundLogger) -> _Entries:
    """Those of ``entries`` that the child of this ``config`` publishes; all without shards."""
    if not config.shards:
        return entries
    _warn_of_missed(entries, config, log)
    return {
        origin: [entry for entry in listed if _shard(entry, config) == config.shard]
        for origin, listed in entries.items()
    }


def _shard(entry: Entry, config: Config) -> str:
    return shard_of(config.shards, entry.job.get("queue", DEFAULT_QUEUE)).name


def _warn_of_missed(entries: _Entries, config: Config, log: FilteringBoundLogger) -> None:
    """The children of one capsule name the entries whose shard has no child of this tree."""
    served = [capsule.shard for capsule in config.capsules]
    missed = sorted(
        entry.name
        for listed in entries.values()
        for entry in listed
        if _shard(entry, config) not in served
    )
    if missed and config.shard == served[0]:
        log.warning(
            "periodic jobs not published: no capsule of this tree has a queue on their shard; add "
            "their queue to one",
            names=missed,
        )
