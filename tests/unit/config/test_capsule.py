"""Capsules: the three orders of queues, and what may be written for a queue or a name."""

from __future__ import annotations

import pytest

from forkq.config.capsule import Capsule, check_name, parse_queue, weigh
from forkq.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("mail", ("mail", 0)),
        ("mail,3", ("mail", 3)),
        ("mail,999999", ("mail", 999_999)),
        ("tenant-*", ("tenant-*", 0)),
        ("a.b:c_[0-9]?,2", ("a.b:c_[0-9]?", 2)),
    ],
)
def test_a_queue_is_a_name_with_an_optional_weight(text: str, queue: tuple[str, int]) -> None:
    assert parse_queue(text) == queue


@pytest.mark.parametrize(
    "text",
    ["", ",", "mail,", ",3", "mail,0", "mail,-1", "mail,2.5", "mail,x", "mail, 3", "ma il", "a,1,2",
     "mail,1000000", "mail\n", "grün", "mail,٣"],
)  # fmt: skip
def test_nonsense_is_refused_and_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_queue(text)
    assert f'"{text}" is not a queue' in str(caught.value)
    assert "NAME,WEIGHT" in str(caught.value)


def test_a_url_given_for_a_queue_is_shown_without_its_password() -> None:
    with pytest.raises(ConfigError, match=r'^"redis://u:\*\*\*@h" is not a queue') as caught:
        parse_queue("redis://u:secret@h")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("queues", "mode"),
    [
        ([("a", 0)], "strict"),
        ([("a", 0), ("b", 0)], "strict"),
        ([("a", 1)], "random"),
        ([("a", 1), ("b", 1)], "random"),
        ([("a", 2), ("b", 1)], "weighted"),
        ([("a", 3), ("b", 3)], "weighted"),
        ([("a", 1), ("b", 0)], "random"),
        ([("a", 5), ("b", 0)], "weighted"),
    ],
)
def test_weights_decide_the_mode(queues: list[tuple[str, int]], mode: str) -> None:
    assert Capsule("default", weigh(queues)).mode == mode


def test_beside_weighted_queues_one_without_a_weight_counts_as_one() -> None:
    assert weigh([("a", 5), ("b", 0), ("c", 2)]) == (("a", 5), ("b", 1), ("c", 2))


def test_without_weights_the_order_stays() -> None:
    assert weigh([("b", 0), ("a", 0)]) == (("b", 0), ("a", 0))


def test_a_queue_twice_in_one_capsule_is_refused() -> None:
    with pytest.raises(ConfigError, match='"a" is listed twice'):
        weigh([("a", 0), ("b", 0), ("a", 2)])


def test_a_capsule_needs_a_queue() -> None:
    with pytest.raises(ConfigError, match="at least one queue"):
        weigh([])


def test_defaults_are_the_default_queue_five_processors_one_child() -> None:
    capsule = Capsule("default")
    assert capsule.queue_names == ("default",)
    assert (capsule.concurrency, capsule.workers, capsule.mode) == (5, 1, "strict")


@pytest.mark.parametrize("name", ["default", "critical", "a-b_c.d:e", "7"])
def test_good_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a*", "é", "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no name for a capsule"):
        check_name(name)


def test_the_clocks_name_is_reserved() -> None:
    with pytest.raises(ConfigError, match='"clock" is a reserved name'):
        check_name("clock")
