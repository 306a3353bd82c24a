"""A job that cannot run as it was pushed is refused, with job and place."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from pathlib import Path
from typing import Any

import pytest

from forkq.errors import InvalidJob
from forkq.wire.validation import validate
from tests.support.payloads import DEEP, job, nested


class Money(int):
    """A subclass of int."""


@pytest.mark.parametrize(
    ("value", "kind", "remedy"),
    [
        ((1, 2), "tuple", "a list"),
        ({1}, "set", "a sorted list"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), "datetime", "isoformat"),
        (datetime.date(2026, 1, 1), "date", "isoformat"),
        (datetime.timedelta(1), "timedelta", "total_seconds"),
        (decimal.Decimal("1.5"), "Decimal", "str"),
        (uuid.UUID(int=0), "UUID", "str"),
        (b"x", "bytes", "base64"),
        (Path("x"), "PosixPath", "str"),
        (object(), "object", "id"),
        (Money(1), "Money", "id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_foreign_type_is_refused_with_job_place_type_and_remedy(
    value: Any, kind: str, remedy: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        validate(job(args=[1, {"deep": ["x", value]}]))
    message = str(caught.value)
    assert "'MyJob'" in message
    assert "args[1]['deep'][1]" in message
    assert f"is {'an' if kind == 'object' else 'a'} {kind}, " in message
    assert remedy in message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(InvalidJob, match=r"args\[0\] is -?(nan|inf)"):
        validate(job(args=[value]))


def test_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"args\[0\] has the key 7 \(int\)"):
        validate(job(args=[{"a": 1, 7: 2}]))


def test_arguments_nested_too_deeply_or_in_a_circle_are_an_invalid_job() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (nested(DEEP), circle):
        with pytest.raises(InvalidJob, match="'MyJob'"):
            validate(job(args=[value]))


def test_strictness_can_warn_or_be_off() -> None:
    with pytest.warns(UserWarning, match=r"'MyJob': args\[0\] is a tuple"):
        validate(job(args=[(1,)]), "warn")
    validate(job(args=[(1,)]), "off")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"class": None}, "class"),
        ({"class": ""}, "class"),
        ({"class": object}, "class"),
        ({"args": None}, "args"),
        ({"args": "ab"}, "args"),
        ({"args": {}}, "args"),
        ({"args": (1,)}, "args"),
        ({"queue": ""}, "queue"),
        ({"queue": 1}, "queue"),
        ({"queue": None}, "queue"),
        ({"retry": "3"}, "retry"),
        ({"retry": 2.5}, "retry"),
        ({"retry": -1}, "retry"),
        ({"retry": []}, "retry"),
        ({"retry_for": 1e9 + 1}, "retry_for"),
        ({"retry_for": -1}, "retry_for"),
        ({"retry_for": "1 day"}, "retry_for"),
        ({"retry_for": True}, "retry_for"),
        ({"retry_for": math.nan}, "retry_for"),
        ({"jid": 5}, "jid"),
        ({"jid": ""}, "jid"),
    ],
)
def test_the_shape_of_a_job_is_checked_however_strict(keys: dict[str, Any], named: str) -> None:
    strictness: tuple[Any, ...] = ("raise", "warn", "off")
    for strict in strictness:
        with pytest.raises(InvalidJob, match=f"`{named}` is"):
            validate(job(**keys), strict)


@pytest.mark.parametrize(
    "keys",
    [
        {"retry": True},
        {"retry": False},
        {"retry": 0},
        {"retry": 10**6},
        {"retry_for": 1e9},
        {"retry_for": 0},
        {"custom": {"x": [1]}, "tags": ["a"], "bid": "b"},
    ],
)
def test_what_sidekiq_admits_is_admitted(keys: dict[str, Any]) -> None:
    validate(job(**keys))
