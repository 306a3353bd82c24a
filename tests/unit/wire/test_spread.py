"""Which part of a spread queue a job goes to: a format that no version may change."""

from __future__ import annotations

import secrets
from collections import Counter
from itertools import islice

import pytest

from forkq.wire.spread import in_turn, part_of

FOUR = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("3f1e0c9d7a6b5c4d2e1f0a9b", "cbad"),
        ("b4a577edbccf1d805744efa9", "bacd"),
        ("order-1", "dbac"),
        ("café", "bcad"),
    ],
)
def test_a_key_leads_to_the_same_parts_in_each_version(key: str, order: str) -> None:
    assert "".join(in_turn(FOUR, key)) == order
    assert part_of(FOUR, key) == order[0]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 64])
def test_jobs_are_spread_evenly(count: int) -> None:
    """By random jids, and by jids that count up."""
    parts = [f"s{number}" for number in range(count)]
    for keys in (
        (secrets.token_hex(12) for _ in range(64_000)),
        map("job-{}".format, range(64_000)),
    ):
        found = Counter(part_of(parts, key) for key in keys)
        share = 64_000 / count
        bound = 6 * (share * (1 - 1 / count)) ** 0.5  # six standard deviations
        assert all(abs(found[part] - share) < bound for part in parts), found


def test_the_jobs_of_a_part_that_is_down_are_spread_evenly_over_the_others() -> None:
    """The second choice of the jobs of one part is no single other part."""
    keys = (secrets.token_hex(12) for _ in range(64_000))
    of_a = (tuple(islice(in_turn(FOUR, key), 2)) for key in keys)
    second = Counter(two[1] for two in of_a if two[0] == "a")
    share = second.total() / 3
    assert set(second) == {"b", "c", "d"}
    assert all(abs(count - share) < 6 * share**0.5 for count in second.values()), second


def test_each_part_comes_once() -> None:
    assert all(sorted(in_turn(FOUR, str(key))) == [*FOUR] for key in range(1000))
    assert [*in_turn(("a",), "x")] == ["a"]
    assert part_of(("a",), "x") == "a"
