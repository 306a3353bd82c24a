"""An option of a job is one row: a made-up row shows who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, cast

import pytest

import forkq
from forkq import registry, testing
from forkq.errors import InvalidJob
from forkq.every import template_of
from forkq.wire.marks import VERSION
from forkq.wire.options import OPTIONS, JobOptions, Option, Values, rows_of
from tests.support.option_table import PAGE, page, table, types_of

_SHADE = Values(lambda value: value in ("red", "blue"), "red or blue")
_COATS = Values(lambda value: type(value) is int and 1 <= value <= 9, "a whole number from 1 to 9")


class MoreOptions(JobOptions, total=False):
    """The table with two rows more, as a feature would add them."""

    shade: Annotated[str, Option("What it is painted with.", "none", _SHADE)]
    coats: Annotated[int, Option(
        "How many coats it gets.", "`1`", _COATS, place="forkq.needs.coats"
    )]  # fmt: skip


@pytest.fixture(autouse=True)
def _more_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in rows_of(MoreOptions).items():
        monkeypatch.setitem(OPTIONS, name, row)
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def pushed() -> Iterator[testing.RecordedJobs]:
    with testing.fake() as jobs:
        yield jobs


# A type checker knows the options of JobOptions only.
define = cast("Any", forkq.job)


def payload_of(pushed: testing.RecordedJobs) -> dict[str, Any]:
    """The last one, without what every payload has. A need that this forkq does not know is for a
    newer one."""
    usual = {"class", "args", "jid", "created_at", "enqueued_at", "queue", "retry"}
    found = {key: value for key, value in pushed[-1].payload.items() if key not in usual}
    if "forkq" in found:
        assert found["forkq"].pop("v") == VERSION + 1
    return found


def test_a_definition_takes_it_and_a_push_carries_it_at_its_place(
    pushed: testing.RecordedJobs,
) -> None:
    paint = define(shade="red", coats=2)(lambda: None)
    paint.perform_async()
    assert payload_of(pushed) == {"shade": "red", "forkq": {"needs": {"coats": 2}}}
    paint.perform_bulk([[]])
    assert payload_of(pushed) == {"shade": "red", "forkq": {"needs": {"coats": 2}}}
    for job in (paint, "Paint"):
        periodic = template_of(job, [], {"shade": "blue", "coats": 3})
        assert (periodic["shade"], periodic["forkq"]) == ("blue", {"needs": {"coats": 3}})


def test_a_subclass_inherits_it(pushed: testing.RecordedJobs) -> None:
    base = cast("Any", type)("Base", (forkq.Job,), {}, coats=3)
    other: Any = type("Other", (base,), {"perform": lambda self: None}, shade="blue")
    other.perform_async()
    assert payload_of(pushed) == {"shade": "blue", "forkq": {"needs": {"coats": 3}}}


def test_set_changes_it_for_one_push_and_leaves_the_definition(
    pushed: testing.RecordedJobs,
) -> None:
    paint = define(coats=2)(lambda: None)
    paint.set(shade="blue", coats=4).perform_async()
    assert payload_of(pushed) == {"shade": "blue", "forkq": {"needs": {"coats": 4}}}
    paint.set(coats=5).set({"forkq": {"needs": {"other": 1}}}, coats=6).perform_async()
    assert payload_of(pushed) == {"forkq": {"needs": {"other": 1, "coats": 6}}}
    paint.perform_async()
    assert payload_of(pushed) == {"forkq": {"needs": {"coats": 2}}}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"shade": "rad"}, "`shade` is 'rad'; pass red or blue"),
        ({"coats": 10}, "`coats` is 10; pass a whole number from 1 to 9"),
    ],
)
def test_an_impossible_value_is_refused_where_it_is_written(
    option: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        define(**option)(lambda: None)
    paint = define(lambda: None)
    with pytest.raises(InvalidJob, match=message):
        paint.set(**option)


def test_a_payload_of_the_apps_own_is_checked_at_the_push(pushed: testing.RecordedJobs) -> None:
    client = forkq.Client("redis://127.0.0.1:1/0")
    with pytest.raises(InvalidJob, match="job 'Paint': `shade` is 1; pass red or blue"):
        client.push({"class": "Paint", "args": [], "shade": 1})
    assert not pushed


def test_a_misspelt_one_is_named() -> None:
    with pytest.raises(
        InvalidJob, match=r"no job option 'coatss'; is 'coats' meant\? use one of .* coats,"
    ):
        define(coatss=1)(lambda: None)
    paint = define(lambda: None)
    with pytest.raises(InvalidJob, match=r"no job option 'coatss'; is 'coats' meant\?"):
        paint.set(coatss=1)
    with pytest.raises(InvalidJob, match="no option 'coatss'; the nearest is 'coats'"):
        template_of("Paint", [], {"coatss": 1})


def test_the_documents_show_it() -> None:
    lines = table(MoreOptions).splitlines()
    assert "| `shade` | `str` | none | What it is painted with. |" in lines
    assert "| `coats` | `int` | `1` | How many coats it gets. |" in lines
    assert types_of(MoreOptions)["coats"] == "int"


def test_the_page_on_jobs_has_the_table() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.support.option_table"


def test_a_row_has_one_sentence() -> None:
    for name, row in OPTIONS.items():
        assert row.about.endswith("."), name


@pytest.mark.parametrize(
    "option",
    [
        {"dead": "no"},
        {"backtrace": -1},
        {"retry_queue": ""},
        {"tags": "mail"},
        {"tags": [1]},
        {"log_level": 10},
        {"secret": 1},
    ],
)
def test_every_option_has_a_check(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=f"`{next(iter(option))}` is "):
        define(**option)(lambda: None)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("exponential", "exponential"),
        (5, 5),
        (timedelta(minutes=1), 60.0),
        ((1, timedelta(seconds=2)), [1, 2.0]),
    ],
)
def test_a_backoff_travels_in_seconds(
    pushed: testing.RecordedJobs, given: Any, stored: Any
) -> None:
    forkq.job(name="slow", backoff=given)(lambda: None).perform_async()
    assert payload_of(pushed) == {"backoff": stored}
    forkq.job(name="plain")(lambda: None).set(backoff=given).perform_async()
    assert payload_of(pushed) == {"backoff": stored}


@pytest.mark.parametrize("wrong", ["linear", 0, -1, [], [1, 0], timedelta(0), True, None, 1e10])
def test_a_backoff_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r"`backoff` is .*a timedelta, or a list of them"):
        forkq.job(backoff=wrong)(lambda: None)


class Away(Exception):
    """Of a service."""


def test_a_class_and_a_function_name_errors_and_a_class_inherits_them() -> None:
    class Calls(forkq.Job, retry_on=Away, discard_on=[KeyError]):
        """A base."""

    class Call(Calls, name="Call"):
        def perform(self) -> None: ...

    forkq.job(name="call", retry_on=(Away,), discard_on=KeyError)(lambda: None)
    for name in ("Call", "call"):
        found = registry.lookup(name)
        assert (found.retry_on, found.discard_on) == ((Away,), (KeyError,))


@pytest.mark.parametrize("wrong", ["KeyError", [KeyError()], int, {"a": 1}])
def test_what_is_no_exception_class_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r"`retry_on` has .*pass exception classes"):
        forkq.job(retry_on=wrong)(lambda: None)


def test_an_error_is_tried_again_or_dropped() -> None:
    with pytest.raises(InvalidJob, match="KeyError is in `retry_on` and in `discard_on`"):
        forkq.job(retry_on=[Away, KeyError], discard_on=KeyError)(lambda: None)
    with pytest.raises(InvalidJob, match="KeyError is in `retry_on` and in `discard_on`"):

        class Both(forkq.Job, retry_on=KeyError, discard_on=[KeyError]):
            def perform(self) -> None: ...
