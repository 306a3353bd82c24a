"""Key names: exactly Sidekiq's, and forkq's own."""

from __future__ import annotations

import pytest

from forkq.wire.keys import Keys

IDENTITY = "vm:17767:ac851c0b9522"


def test_without_a_prefix_the_names_are_sidekiqs() -> None:
    keys = Keys()
    assert (keys.queues, keys.schedule, keys.retry, keys.dead, keys.processes) == (
        "queues",
        "schedule",
        "retry",
        "dead",
        "processes",
    )
    assert keys.queue("default") == "queue:default"
    assert keys.process(IDENTITY) == IDENTITY
    assert keys.work(IDENTITY) == f"{IDENTITY}:work"
    assert keys.works(IDENTITY) == (f"{IDENTITY}:work", f"{IDENTITY}:workers")
    assert keys.signals(IDENTITY) == f"{IDENTITY}-signals"
    assert keys.stat("processed") == "stat:processed"
    assert keys.stat_of_day("failed", "2026-11-20") == "stat:failed:2026-11-20"


def test_the_inflight_hash_is_ours_and_shares_a_cluster_slot_with_its_list() -> None:
    name = Keys().inflight("mail")
    assert name == "{queue:mail}:inflight"
    assert name[name.index("{") + 1 : name.index("}")] == Keys().queue("mail")


@pytest.mark.parametrize("prefix", ["app:", "x"])
def test_a_prefix_stands_before_every_name(prefix: str) -> None:
    bare, prefixed = Keys(), Keys(prefix)
    for attribute in ("queues", "schedule", "retry", "dead", "processes"):
        assert getattr(prefixed, attribute) == prefix + getattr(bare, attribute)
    for method in ("queue", "inflight", "process", "work", "signals", "stat"):
        assert getattr(prefixed, method)("q") == prefix + getattr(bare, method)("q")
    assert prefixed.stat_of_day("failed", "d") == prefix + bare.stat_of_day("failed", "d")
