"""@forkq.every and [[cron]]: how an app defines periodic jobs, and what it publishes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import forkq
from forkq import registry
from forkq.config.config import Config
from forkq.config.load import load
from forkq.cron.entry import Entry
from forkq.errors import ForkqError, InvalidJob, InvalidSchedule
from forkq.every import entries_by_origin


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of this test's own."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "periodic", {})


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Config]:
    """The configuration from a text, as an app of that name."""

    def configure(text: str = "", app: str = "shop.jobs", tag: str = "") -> Config:
        (tmp_path / "forkq.toml").write_text(f'[forkq]\napp = "{app}"\ntag = "{tag}"\n{text}')
        return load(None, {}, {}, tmp_path)

    return configure


def define() -> type[forkq.Job]:
    """A job class with options and arguments; a new one each time, as after a reload."""

    class Report(forkq.Job, name="Report", queue="reports", retry=3, tags=["daily"]):
        def perform(self, kind: str, days: int = 1) -> None: ...

    return Report


def noted(name: str) -> Entry:
    """The entry that the decorator registered."""
    entry = registry.periodic[name].entry
    assert isinstance(entry, Entry)
    return entry


class TestEvery:
    def test_on_a_class_notes_the_job_with_its_options_and_returns_the_class(self) -> None:
        report = define()
        assert forkq.every("30 2 * * *", tz="Europe/Berlin", args=["sales"])(report) is report
        assert noted("Report") == Entry.make(
            name="Report",
            cron="30 2 * * *",
            tz="Europe/Berlin",
            job={"class": "Report", "args": ["sales"], "queue": "reports", "retry": 3,
                 "tags": ["daily"]},
        )  # fmt: skip

    def test_on_a_function_leaves_it_callable_and_a_job(self) -> None:
        @forkq.every("@hourly")
        @forkq.job(name="tidy")
        def tidy() -> str:
            return "tidied"

        assert tidy() == "tidied"
        assert tidy.name == "tidy"
        assert noted("tidy").job == {"class": "tidy", "args": [], "queue": "default", "retry": True}

    def test_stands_on_one_job_several_times_with_several_names(self) -> None:
        @forkq.every("0 9 * * *", name="morning", args=["sales"], queue="low")
        @forkq.every("0 17 * * *", name="evening", args=("stock", 7))
        class Report(forkq.Job, queue="reports"):
            def perform(self, kind: str, days: int = 1) -> None: ...

        morning, evening = noted("morning"), noted("evening")
        assert (morning.job["args"], morning.job["queue"]) == (["sales"], "low")
        assert (evening.job["args"], evening.job["queue"]) == (["stock", 7], "reports")
        assert morning.job["class"] == evening.job["class"] == Report.set().name

    def test_carries_every_policy(self) -> None:
        options: dict[str, Any] = {"overlap": "skip", "missed": 5, "jitter": 30, "enabled": False}
        forkq.every("@daily", args=["x"], **options)(define())
        entry = noted("Report")
        assert {key: getattr(entry, key) for key in options} == options

    def test_a_second_definition_under_one_name_is_refused_even_on_the_same_job(self) -> None:
        report = forkq.every("0 1 * * *", args=["x"])(define())
        with pytest.raises(
            InvalidSchedule,
            match=r"two periodic jobs are named 'Report': on .*"
            r"define.*Report \(.*\) and on .* another name=",
        ):
            forkq.every("0 2 * * *", args=["x"])(report)

    def test_the_same_name_on_two_jobs_is_refused_and_both_are_named(self) -> None:
        forkq.every("@daily", name="nightly", args=["x"])(define())
        with pytest.raises(InvalidSchedule, match=r"define.*Report \(.*\) and on .*\.other \("):

            @forkq.every("@daily", name="nightly")
            @forkq.job
            def other() -> None: ...

    def test_a_reloaded_module_replaces_its_own(self) -> None:
        forkq.every("0 1 * * *", args=["x"])(define())
        forkq.every("0 2 * * *", args=["x"])(define())
        assert noted("Report").schedule.expression == "0 2 * * *"

    @pytest.mark.parametrize("thing", [lambda: None, int, object(), "Report", None])
    def test_on_an_object_that_is_no_job_the_error_says_where_it_belongs(self, thing: Any) -> None:
        with pytest.raises(InvalidJob, match=r"no job: put it above @forkq\.job, or on a class"):
            forkq.every("@daily")(thing)

    def test_on_a_class_without_perform_it_says_so(self) -> None:
        class Base(forkq.Job): ...

        with pytest.raises(ForkqError, match=r"Base has no perform\(\)"):
            forkq.every("@daily")(Base)

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ([], "takes 1 to 2 arguments, but args has 0"),
            (["a", 1, 2], "takes 1 to 2 arguments, but args has 3"),
            ([datetime(2026, 1, 1)], r"args\[0\] is a datetime"),
            ([("a",)], r"args\[0\] is a tuple, .* pass a list"),
            ("sales", "args is 'sales'; pass a list"),
        ],
    )
    def test_arguments_must_be_json_and_fit_the_job(self, args: Any, message: str) -> None:
        with pytest.raises(InvalidJob, match=message):
            forkq.every("@daily", args=args)(define())
        assert not registry.periodic

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"expression": "61 * * * *"}, "minute is '61'"),
            ({"expression": 30}, r'not 30 seconds: write @forkq.every\("\*/30 \* \* \* \* \*"\)'),
            ({"expression": timedelta(minutes=5)}, r'not 300 seconds.*"\*/5 \* \* \* \*"'),
            ({"expression": 7200.0}, r'not 7200 seconds.*"0 \*/2 \* \* \*"'),
            ({"tz": "Berlin"}, "Europe/Berlin"),
            ({"name": ""}, "expected a name"),
            ({"overlap": "no"}, 'overlap: expected "skip" or "allow"'),
            ({"missed": "all"}, 'missed: expected "skip", "once" or'),
            ({"jitter": -1}, "jitter: expected"),
        ],
    )
    def test_a_schedule_that_makes_no_sense_is_refused(
        self, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidSchedule, match=message):
            forkq.every(**{"expression": "@daily", "args": ["x"], **options})(define())
        assert not registry.periodic

    def test_an_empty_queue_is_refused(self) -> None:
        with pytest.raises(InvalidJob, match="`queue` is ''"):
            forkq.every("@daily", args=["x"], queue="")(define())

    def test_without_parentheses_it_is_refused_at_once(self) -> None:
        @forkq.job
        def tidy() -> None: ...

        def plain() -> None: ...

        every: Any = forkq.every
        for thing in (tidy, define(), plain):
            with pytest.raises(InvalidSchedule, match=r'write @forkq\.every\("\*/5 \* \* \* \*"\)'):
                every(thing)

    @pytest.mark.parametrize(
        "wrong", [{"expression": "61 * * * *"}, {"tz": "Berlin"}, {"args": []}, {"jitter": -1}]
    )
    def test_an_error_names_the_decorated_job(self, wrong: dict[str, Any]) -> None:
        report = define()
        where = rf"@forkq\.every on {__name__}\.define\.<locals>\.Report: "
        with pytest.raises(ForkqError, match=where) as caught:
            forkq.every(**{"expression": "@daily", "args": ["x"], **wrong})(report)
        assert isinstance(caught.value, InvalidSchedule | InvalidJob)

    def test_a_zone_may_be_given_as_such(self) -> None:
        forkq.every("@daily", args=["x"], tz=ZoneInfo("Europe/Berlin"))(define())
        assert noted("Report").schedule.tz == "Europe/Berlin"

    def test_a_zone_without_a_name_is_refused(self) -> None:
        with pytest.raises(InvalidSchedule, match="has no name; pass an IANA name"):
            forkq.every("@daily", args=["x"], tz=timezone.utc)(define())


class TestPublished:
    ROW = '[[cron]]\njob = "Report"\ncron = "@daily"\nargs = ["sales"]\n'

    def test_code_and_file_have_origins_of_their_own(
        self, configured: Callable[..., Config]
    ) -> None:
        forkq.every("@hourly", name="by code", args=["x"])(define())
        published = entries_by_origin(configured(self.ROW))
        assert {origin: [e.name for e in entries] for origin, entries in published.items()} == {
            "code:shop.jobs": ["by code"],
            "file:shop.jobs": ["Report"],
        }
        assert all(e.origin == origin for origin, entries in published.items() for e in entries)

    def test_an_origin_without_entries_is_there_so_that_old_ones_go(
        self, configured: Callable[..., Config]
    ) -> None:
        assert entries_by_origin(configured()) == {"code:shop.jobs": [], "file:shop.jobs": []}

    def test_a_row_gets_the_options_of_its_job(self, configured: Callable[..., Config]) -> None:
        define()
        (entry,) = entries_by_origin(configured(self.ROW))["file:shop.jobs"]
        assert entry.job == {
            "class": "Report", "args": ["sales"], "queue": "reports", "retry": 3, "tags": ["daily"],
        }  # fmt: skip

    def test_without_a_zone_of_their_own_they_have_that_of_the_configuration(
        self, configured: Callable[..., Config]
    ) -> None:
        forkq.every("30 2 * * *", name="no zone", args=["x"])(define())
        forkq.every("30 2 * * *", name="own", args=["x"], tz="UTC")(define())
        rows = f'cron_tz = "Europe/Berlin"\n{self.ROW}{self.ROW}name = "own row"\ntz = "Asia/Tokyo"'
        published = entries_by_origin(configured(rows))
        zones = {e.name: e.schedule.tz for entries in published.values() for e in entries}
        assert zones == {
            "no zone": "Europe/Berlin", "own": "UTC", "Report": "Europe/Berlin",
            "own row": "Asia/Tokyo",
        }  # fmt: skip
        zones = {e.name: e.schedule.tz for e in entries_by_origin(configured())["code:shop.jobs"]}
        assert zones == {"no zone": "UTC", "own": "UTC"}

    def test_its_own_queue_is_stronger(self, configured: Callable[..., Config]) -> None:
        define()
        (entry,) = entries_by_origin(configured(self.ROW + 'queue = "low"'))["file:shop.jobs"]
        assert (entry.job["queue"], entry.job["retry"]) == ("low", 3)

    def test_a_job_that_this_app_has_not_gets_the_usual_options(
        self, configured: Callable[..., Config]
    ) -> None:
        """It may be another app's, or a Ruby class."""
        (entry,) = entries_by_origin(configured(self.ROW))["file:shop.jobs"]
        assert entry.job == {
            "class": "Report", "args": ["sales"], "queue": "default", "retry": True,
        }  # fmt: skip

    def test_arguments_that_do_not_fit_are_refused_with_file_and_name(
        self, configured: Callable[..., Config]
    ) -> None:
        define()
        text = self.ROW.replace('["sales"]', "[]")
        with pytest.raises(InvalidJob, match=r"forkq\.toml: \[\[cron\]\] 'Report': .* takes 1 to"):
            entries_by_origin(configured(text))

    def test_arguments_beyond_the_bounds_of_a_payload_are_refused(
        self, configured: Callable[..., Config]
    ) -> None:
        """A tick would push them past the bounds that hold for all other pushes."""
        define()
        bound = "max_payload_size = 1024\n"
        entries_by_origin(configured(bound + self.ROW.replace("sales", "x" * 500)))
        row = bound + self.ROW.replace("sales", "x" * 1024)
        with pytest.raises(InvalidJob, match=r"periodic job .Report.: .* the most is 1,024;"):
            entries_by_origin(configured(row))

    def test_one_name_in_code_and_file_is_refused_and_both_are_named(
        self, configured: Callable[..., Config]
    ) -> None:
        forkq.every("@hourly", args=["x"])(define())
        with pytest.raises(
            InvalidSchedule, match=r"code on .*define.*Report \(.*:\d+\) and in .*forkq\.toml"
        ):
            entries_by_origin(configured(self.ROW))

    def test_two_services_on_one_redis_have_origins_of_their_own(
        self, configured: Callable[..., Config]
    ) -> None:
        origins = {
            next(iter(entries_by_origin(configured(app=app, tag=tag))))
            for app, tag in (("shop.jobs", ""), ("blog.jobs", ""), ("shop.jobs", "eu"))
        }
        assert origins == {"code:shop.jobs", "code:blog.jobs", "code:eu"}

    @pytest.mark.parametrize(
        ("origin", "service"),
        [
            ("code:shop", "shop"),
            ("file:shop", "shop"),
            ("code:", ""),
            ("api", None),
            ("", None),
            ("other:shop", None),
        ],
    )
    def test_an_entry_knows_its_service(self, origin: str, service: str | None) -> None:
        """An entry without a service (the API's, another program's) always ticks."""
        entry = Entry.make(name="a", cron="@daily", job={"class": "A", "args": []}, origin=origin)
        assert entry.service == service
