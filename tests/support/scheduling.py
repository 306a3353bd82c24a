"""How xdist's controller hands the tests out."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]


class ForgetsWhatIsDone(LoadGroupScheduling):  # type: ignore[misc]
    """xdist counts after each test what its worker has still to do, and looks through all that it
    has done: with five thousand tests, that takes the controller seconds."""

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
