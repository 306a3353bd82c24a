"""Which process the kernel kills first when memory runs out: what a new child writes for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.master.spawn import stand_before_master


@pytest.mark.parametrize(
    ("own", "ordinary", "solo"),
    [(0, 200, 600), (-500, -300, 100), (-999, -799, -399), (-1000, 200, 600), (400, 600, 1000),
     (985, 990, 1000), (1000, 1000, 1000)],
)  # fmt: skip
def test_a_child_is_killed_before_its_master_whatever_the_unit_has_set(
    tmp_path: Path, own: int, ordinary: int, solo: int
) -> None:
    """Never lower than what is there; where room is short (a burstable pod) the order stays. A
    master that is never killed (-1000) has children that can be."""
    file = tmp_path / "oom_score_adj"
    found = []
    for is_solo in (False, True):
        file.write_text(f"{own}\n")
        stand_before_master(solo=is_solo, file=file)
        found.append(int(file.read_text()))
    assert found == [ordinary, solo]


def test_without_proc_no_score_is_set(tmp_path: Path) -> None:
    stand_before_master(solo=True, file=tmp_path / "nothing" / "oom_score_adj")
    assert list(tmp_path.iterdir()) == []
