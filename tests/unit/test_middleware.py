"""Middleware: its order, outermost first, and what passes through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forkq.errors import ForkqError
from forkq.middleware import Chain, Middleware


def named(name: str, trace: list[str]) -> Middleware:
    def member(job: dict[str, Any], call: Callable[[], Any], /) -> Any:
        trace.append(f"{name} in")
        try:
            return call()
        finally:
            trace.append(f"{name} out")

    return member


@pytest.fixture
def trace() -> list[str]:
    return []


def test_the_first_appended_is_the_outermost(trace: list[str]) -> None:
    chain = Chain()
    chain.append(named("a", trace))
    chain.append(named("b", trace))
    assert chain.run({}, lambda: trace.append("core")) is None
    assert trace == ["a in", "b in", "core", "b out", "a out"]


def test_prepend_before_after_and_remove_place_members(trace: list[str]) -> None:
    a, b, c, d, e = (named(name, trace) for name in "abcde")
    chain = Chain()
    chain.append(c)
    chain.prepend(a)
    chain.before(c, b)
    chain.after(c, e)
    chain.after(c, d)
    assert list(chain) == [a, b, c, d, e]
    chain.remove(c)
    assert list(chain) == [a, b, d, e]
    chain.clear()
    assert len(chain) == 0


def test_adding_works_as_a_decorator() -> None:
    chain = Chain()

    @chain.append
    def member(job: dict[str, Any], call: Callable[[], Any], /) -> Any:
        return call()

    assert list(chain) == [member]


def test_members_see_and_change_the_job_and_the_result() -> None:
    chain = Chain()

    @chain.append
    def double(job: dict[str, Any], call: Callable[[], Any], /) -> Any:
        job["seen"] = True
        return call() * 2

    job: dict[str, Any] = {}
    assert chain.run(job, lambda: 21) == 42
    assert job == {"seen": True}


def test_a_member_that_does_not_call_ends_the_way(trace: list[str]) -> None:
    chain = Chain()
    chain.append(lambda job, call: None)
    chain.append(named("never", trace))
    assert chain.run({}, lambda: 1) is None
    assert trace == []


def test_an_exception_passes_through_all_of_them(trace: list[str]) -> None:
    chain = Chain()
    chain.append(named("a", trace))

    def core() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        chain.run({}, core)
    assert trace == ["a in", "a out"]


def test_a_chain_without_members_just_calls() -> None:
    assert Chain().run({}, lambda: 7) == 7


def test_a_place_next_to_an_unknown_member_is_refused() -> None:
    chain = Chain()
    unknown = named("x", [])
    for act in (lambda: chain.before(unknown, unknown), lambda: chain.after(unknown, unknown),
                lambda: chain.remove(unknown)):  # fmt: skip
        with pytest.raises(ForkqError, match="not in this middleware chain"):
            act()
