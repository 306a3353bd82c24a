"""Types for checkers only: the rows of ``perform_bulk``.

Nothing of this is imported when the code runs. ``typing_extensions`` comes with each type checker.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from typing_extensions import TypeVarTuple, Unpack

A = TypeVar("A", contravariant=True)  # noqa: PLC0105 - short, as these signatures are
B = TypeVar("B", contravariant=True)  # noqa: PLC0105 - short, as these signatures are
C = TypeVar("C", contravariant=True)  # noqa: PLC0105 - short, as these signatures are
Ts = TypeVarTuple("Ts")


# By these shapes a checker knows which rows fit. A job without optional parameters has the first.


class TakesAll(Protocol[Unpack[Ts]]):
    """The shape of a job of these parameters, none of which may be left out."""

    def perform_async(self, *args: Unpack[Ts]) -> str: ...


class TakesOneOrTwo(Protocol[A, B]):
    """The shape of a job with one parameter, and one that may be left out."""

    def perform_async(self, a: A, b: B = ..., /) -> str: ...


class TakesTwoOrThree(Protocol[A, B, C]):
    """The shape of a job with two parameters, and one that may be left out."""

    def perform_async(self, a: A, b: B, c: C = ..., /) -> str: ...


class TakesOneToThree(Protocol[A, B, C]):
    """The shape of a job with one parameter, and two that may be left out."""

    def perform_async(self, a: A, b: B = ..., c: C = ..., /) -> str: ...


# A parameter that only a name can give, with a default, takes no part in a push. mypy does not
# unpack the parameters before it, so these shapes count them.


class TakesOne(Protocol[A]):
    """The shape of a job with one parameter that a push can give."""

    def perform_async(self, a: A, /) -> str: ...


class TakesTwo(Protocol[A, B]):
    """The shape of a job with two parameters that a push can give."""

    def perform_async(self, a: A, b: B, /) -> str: ...


class TakesThree(Protocol[A, B, C]):
    """The shape of a job with three parameters that a push can give."""

    def perform_async(self, a: A, b: B, c: C, /) -> str: ...
