"""The line of `forkq top` that says what is wrong: how many problems it leaves out."""

from __future__ import annotations

import pytest

from forkq.screens.problems import Problem
from forkq.top.status import _lines


@pytest.mark.parametrize(
    ("most", "said"), [(1, "one  and 9 problems more: 1"), (4, "and 7 problems more")]
)
def test_a_line_counts_all_problems_that_it_leaves_out(most: int, said: str) -> None:
    """The last one of the list stands for all that are not in it."""
    more = Problem("and 7 problems more", key="more", count=7)
    shown = _lines([Problem("one"), Problem("two"), Problem("three"), more], "", None, most)
    assert shown[-1][0].plain.endswith(said)
