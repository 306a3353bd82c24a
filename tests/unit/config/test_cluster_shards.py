"""Prefixes of ``cluster_shards``: far apart for any number of them, and the same for ever."""

from __future__ import annotations

import pytest

from forkq.config.cluster_shards import MOST, number_of, prefix_of
from forkq.errors import ConfigError
from forkq.wire.redis_url import SLOTS, slot_of


def slots_of(prefix: str, count: int) -> list[int]:
    made = (prefix_of(prefix, number) for number in range(1, count))
    return sorted(map(slot_of, (prefix, *made)))


@pytest.mark.parametrize("prefix", ["{forkq}:", "{shop}:jobs:", "{a}", "x:{b}:"])
@pytest.mark.parametrize("count", [2, 4, 8, 16, 32, MOST])
def test_the_shards_are_spread_evenly_over_the_slots(prefix: str, count: int) -> None:
    slots = slots_of(prefix, count)
    gaps = [(b - a) % SLOTS for a, b in zip(slots, [*slots[1:], slots[0]], strict=True)]
    # Its own slot may be anywhere within a 64th; the tags are in the middle of theirs.
    assert max(abs(gap - SLOTS // count) for gap in gaps) <= SLOTS // MOST // 2 + 6


def test_on_equal_nodes_each_has_one() -> None:
    for name in ("forkq", "shop", "a", "b", "c"):
        nodes = {slot * 8 // SLOTS for slot in slots_of(f"{{{name}}}:", 8)}
        assert len(nodes) == 8


def test_a_prefix_is_the_same_for_ever() -> None:
    """Else the jobs of the shard would not be found any more."""
    made = [prefix_of("{forkq}:", number) for number in (1, 2, 3, 4, 5, 6, 7, 63)]
    tags = ["jtq", "blk", "qkp", "ttr", "fqd", "wbv", "mnx", "cnx"]
    assert made == [f"{{{tag}}}forkq:" for tag in tags]


def test_two_apps_on_one_cluster_share_no_key() -> None:
    made = [prefix_of(prefix, n) for prefix in ("{a}:", "{b}:") for n in range(1, MOST)]
    assert len(set(made)) == len(made)


def test_a_prefix_without_a_name_in_braces_has_no_slot() -> None:
    with pytest.raises(ConfigError, match=r'write prefix = "\{forkq\}:" under \[redis\]'):
        prefix_of("forkq:", 1)


@pytest.mark.parametrize(
    ("name", "number"), [("s1", 1), ("s63", 63), ("s0", 0), ("s01", 0), ("s", 0), ("S1", 0)]
)
def test_the_name_has_the_number(name: str, number: int) -> None:
    assert number_of(name) == number
