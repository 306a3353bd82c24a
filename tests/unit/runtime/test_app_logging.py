"""What the app logs: with the values of its job, at its own level, by forkq or as the app wants."""

from __future__ import annotations

import collections
import contextvars
import io
import itertools
import json
import logging
import logging.config
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from forkq.current_job import enter_job, leave_job
from forkq.logs import JobFilter, add_job
from forkq.runtime import job_lines, log

JOB = {"class": "Mail", "jid": "7ff3cf34efff6d76635f23dd", "queue": "low", "retry_count": 1}
BOUND = {"class": "Mail", "jid": "7ff3cf34efff6d76635f23dd", "queue": "low", "attempt": 3}


@pytest.fixture(autouse=True)
def _own_app_logger(own_logging: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    app = logging.Logger("app")
    app.parent = logging.getLogger()
    monkeypatch.setitem(logging.Logger.manager.loggerDict, "app", app)
    yield
    leave_job()


@pytest.fixture
def err(capfd: pytest.CaptureFixture[str]) -> Any:
    """The lines in standard error."""

    def lines() -> list[str]:
        log.flush()
        return capfd.readouterr().err.splitlines()

    return lines


def started() -> None:
    """The child has begun, and the app is not loaded yet. pytest's handlers, which it adds to the
    root logger for each phase of a test, are gone."""
    logging.getLogger().handlers[:] = []
    log.configure("info", "json")
    log.bind(pid=7, capsule="default.0")


def loaded(*, takeover: bool = False) -> None:
    """The app is loaded, and a job runs."""
    log.respect_app(takeover=takeover)
    enter_job(dict(JOB))


def test_an_app_without_logging_of_its_own_writes_forkqs_lines(err: Any) -> None:
    started()
    logging.getLogger("app").info("while it is imported")
    loaded()
    logging.info("by the root logger")
    logging.getLogger("app").warning("picture %d", 7, extra={"size": 3, "method_name": "x"})
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("app").exception("no luck")
    first, second, third, fourth = map(json.loads, err())
    assert (first["event"], first["level"]) == ("while it is imported", "info")
    assert second.items() >= {**BOUND, "event": "by the root logger", "level": "info"}.items()
    assert third.items() >= {**BOUND, "event": "picture 7", "level": "warning", "size": 3}.items()
    assert (third["logger"], third["method_name_"]) == ("app", "x")
    assert (fourth["level"], fourth["error_class"], fourth["error"]) == (
        "error",
        "ValueError",
        "bad",
    )
    assert "in test_an_app" in fourth["exception"]


def test_structlog_as_it_comes_writes_forkqs_lines(err: Any) -> None:
    started()
    logger = structlog.get_logger("app")
    loaded()
    logger.debug("not wanted")
    logger.bind(user=7).warning("by structlog", size=3)
    (line,) = map(json.loads, err())
    values = {**BOUND, "event": "by structlog", "level": "warning", "user": 7, "size": 3}
    assert line.items() >= values.items()
    assert line["pid"] == 7


def test_a_chain_of_structlog_of_the_apps_own_gets_the_job(
    err: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    started()
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )
    loaded()
    structlog.get_logger().info("mine")
    assert json.loads(capfd.readouterr().out) == {**BOUND, "event": "mine"}


def test_the_levels_that_the_app_sets_count(err: Any) -> None:
    started()
    loaded()
    app = logging.getLogger("app")
    app.debug("not wanted")
    app.setLevel(logging.DEBUG)
    app.debug("wanted")
    app.critical("at its own level")
    found = [(line["level"], line["event"]) for line in map(json.loads, err())]
    assert found == [("debug", "wanted"), ("critical", "at its own level")]


def _dict_config(stream: Any) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"own": {"format": "%(levelname)s %(jid)s %(attempt)s %(message)s"}},
            "handlers": {
                "own": {"class": "logging.StreamHandler", "formatter": "own", "stream": stream}
            },
            "root": {"level": "INFO", "handlers": ["own"]},
        }
    )


def test_an_app_that_configures_logging_keeps_it_and_gets_the_job(err: Any) -> None:
    started()
    stream = io.StringIO()
    _dict_config(stream)
    loaded()
    logging.getLogger("app").info("mine")
    leave_job()
    logging.getLogger("app").info("outside of a job")
    assert stream.getvalue().splitlines() == [
        f"INFO {JOB['jid']} 3 mine",
        "INFO None None outside of a job",
    ]
    assert err() == []
    log.logger().info("forkq's own line")
    assert len(err()) == 1


def test_basic_config_with_a_format_is_the_apps_own_and_without_one_it_is_not(err: Any) -> None:
    started()
    logging.basicConfig(level=logging.DEBUG)
    loaded()
    logging.getLogger("app").debug("forkq's format, the app's level")
    (line,) = map(json.loads, err())
    assert line["jid"] == JOB["jid"]
    logging.basicConfig(force=True, format="own %(message)s", stream=sys.__stdout__)
    loaded()
    logging.getLogger("app").warning("mine")
    assert err() == []


def test_a_logger_with_a_handler_of_its_own_writes_no_line_twice(err: Any) -> None:
    started()
    stream = io.StringIO()
    logging.getLogger("app").addHandler(logging.StreamHandler(stream))
    loaded()
    logging.getLogger("app").warning("mine")
    logging.getLogger("other").warning("forkq's")
    assert stream.getvalue() == "mine\n"
    assert [json.loads(line)["event"] for line in err()] == ["forkq's"]


def test_takeover_replaces_what_writes_to_the_terminal_and_nothing_else(err: Any) -> None:
    started()
    file = io.StringIO()
    _dict_config(sys.stderr)
    logging.getLogger("app").addHandler(logging.StreamHandler(sys.stdout))
    logging.getLogger().addHandler(logging.StreamHandler(file))
    loaded(takeover=True)
    loaded(takeover=True)  # a child of a tree that preloads does it again
    logging.getLogger("app").warning("once")
    assert [json.loads(line)["event"] for line in err()] == ["once"]
    assert file.getvalue() == "once\n"


def test_the_filter_and_the_processor_leave_what_is_there() -> None:
    enter_job(dict(JOB))
    record = logging.makeLogRecord({"queue": "mine"})
    assert JobFilter().filter(record)
    assert (record.queue, record.job_class, record.attempt) == ("mine", "Mail", 3)  # type: ignore[attr-defined]
    assert add_job(None, "info", {"jid": "mine"})["jid"] == "mine"


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the bound of lines sees; a test moves it."""
    times = [1000.0]
    monkeypatch.setattr(job_lines, "monotonic", lambda: times[0])
    return times


def logged(text: list[str]) -> list[tuple[str, str, int]]:
    """The level and event of lines that follow each other, and how many there are."""
    found = [(line["level"], line["event"]) for line in map(json.loads, text)]
    return [(*line, len(list(same))) for line, same in itertools.groupby(found)]


LEFT_OUT = "lines of a job left out"


def test_what_a_job_logs_in_a_minute_is_bound_and_the_rest_is_counted(
    err: Any, minutes: list[float]
) -> None:
    """Lines of WARNING and above have a bound of their own. The next minute begins anew."""
    started()
    loaded()
    log.bound_job_lines(3)
    app = logging.getLogger("app")
    for _ in range(5):
        app.info("plain")
        structlog.get_logger().info("by structlog")
        app.warning("urgent")
    written = collections.Counter(json.loads(line)["event"] for line in err())
    assert written == {"plain": 2, "by structlog": 1, "urgent": 3}
    log.report_dropped_lines()
    assert err() == [], "the minute goes on"
    minutes[0] += 62
    app.info("plain")
    log.report_dropped_lines()
    log.report_dropped_lines()
    plain, told = map(json.loads, err())
    assert plain["event"] == "plain"
    assert told == {**told, **BOUND, "level": "warning", "event": LEFT_OUT, "lines": 9}


def test_each_job_has_a_bound_of_its_own_in_all_its_threads(err: Any, minutes: list[float]) -> None:
    started()
    loaded()
    log.bound_job_lines(3)
    for jid in ("first", "second"):
        enter_job({**JOB, "jid": jid})
        for _ in range(4):
            contextvars.copy_context().run(logging.getLogger("app").info, "plain")
    leave_job()
    assert logged(err()) == [("info", "plain", 6)]
    log.report_left_out_lines(at_end=True)
    told = [json.loads(line) for line in err()]
    assert [(line["jid"], line["lines"]) for line in told] == [("first", 1), ("second", 1)]


def test_outside_of_a_job_and_without_a_bound_every_line_is_written(err: Any) -> None:
    started()
    loaded()
    for _ in range(2000):
        logging.getLogger("app").info("plain")
    log.bound_job_lines(3)
    leave_job()
    for _ in range(5):
        logging.getLogger("app").info("plain")
    log.report_left_out_lines(at_end=True)
    assert logged(err()) == [("info", "plain", 2005)]


def test_no_line_of_forkq_is_left_out(err: Any, minutes: list[float]) -> None:
    started()
    loaded()
    log.bound_job_lines(1)
    for _ in range(3):
        log.logger().info("ours")
        log.logger().warning("failed")
    assert len(err()) == 6


def test_a_fork_tells_only_what_itself_has_left_out(err: Any, minutes: list[float]) -> None:
    started()
    loaded()
    log.bound_job_lines(1)
    for _ in range(3):
        logging.getLogger("app").info("plain")
    pid = os.fork()
    if pid == 0:
        log.report_left_out_lines(at_end=True)
        log.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    assert logged(err()) == [("info", "plain", 1)]
    log.report_left_out_lines(at_end=True)
    assert logged(err()) == [("warning", LEFT_OUT, 1)]


def test_printed_lines_count_too(minutes: list[float]) -> None:
    log.bound_job_lines(10)
    enter_job(dict(JOB))
    admitted = [log.admit_print(urgent=False, lines=4) for _ in range(5)]
    assert admitted == [True, True, True, False, False]
    assert log.admit_print(urgent=True, lines=1)
