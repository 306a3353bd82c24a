"""What the master checks of each living child: time limits of its jobs, its contact to Redis, its
silence, its memory, its age and its code. Each check may replace or remove the child."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.config import Config
from .children import Children
from .fresh_counts import FreshCounts
from .hard_limits import HardLimits
from .recycling import Recycler
from .redis_contact import RedisContact
from .reload import Reload
from .removal import Removals
from .replacement import Replacements
from .unhealthy_children import UnhealthyChildren

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Supervision:
    """Called in each turn of the master's loop, until the tree stops."""

    def __init__(
        self,
        config: Config,
        children: Children,
        replacements: Replacements,
        removals: Removals,
        log: FilteringBoundLogger,
    ) -> None:
        self._hard_limits = HardLimits(children, replacements, removals, config.timeout, log)
        self._redis_contact = RedisContact(children.by_pid, config.silent_after, log)
        self._unhealthy = UnhealthyChildren(children, replacements, removals, config, log)
        self._recycler = Recycler(children, replacements, removals, log)
        self.reload = Reload(children, replacements, log)
        self.fresh_counts = FreshCounts(children)

    @property
    def due(self) -> list[float | None]:
        """When ``check`` has something to do, if nothing happens before (monotonic)."""
        return [self._hard_limits.due, self._recycler.due]

    def check(self, *, quiet: bool) -> None:
        """``quiet``: the tree is quiet, and recycles no child."""
        self._hard_limits.enforce()
        self._redis_contact.check()
        self._unhealthy.check()
        self._recycler.check(quiet=quiet)
        self.reload.advance(quiet=quiet)
