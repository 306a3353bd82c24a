"""How xdist's controller hands the tests out."""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

# One worker of so many begins with the last tests.
_FROM_BEHIND: Final = 3


class MixedScheduling(LoadGroupScheduling):  # type: ignore[misc]
    """The first tests start processes and wait for them; the last ones compute. So that no
    processor is idle in the first half and none is missing in the second, two thirds of the workers
    go forward through the list, the others backward, until they meet."""

    def _assign_work_unit(self, node: Any) -> None:
        if self.nodes.index(node) % _FROM_BEHIND == _FROM_BEHIND - 1:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """xdist counts after each test what its worker has still to do, and looks through all that
        it has done: with five thousand tests, that takes the controller seconds. So what is done is
        forgotten."""
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
