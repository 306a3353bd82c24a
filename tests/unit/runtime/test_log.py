"""The log: one line per event, with any structlog setup of the app and with any values."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from typing import Any, NoReturn

import pytest
import structlog

from forkq.runtime import log
from forkq.runtime.log import LogOnce
from tests.support.recorded_log import RecordedLog
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("own_logging")

# Its text is bytes, which Python's own formatter cannot show.
SYNTAX_ERROR = SyntaxError("x", ("f", 1, 1, b"\xff"))  # type: ignore[arg-type]
STYLES = ["console", "json", "logfmt"]
HOSTILE = "Job\x1b[2J\x9b31m\u202e\r\x00\x7f"


def _configure(level: str, style: str) -> None:
    """As a child does, without the handlers that pytest has given to the root logger."""
    logging.getLogger().handlers[:] = []
    log.configure(level, style)
    log.respect_app(takeover=False)


class RaisesInRepr:
    """A value that raises when it is converted to text."""

    def __repr__(self) -> NoReturn:
        raise ValueError

    __str__ = __repr__


def _as_its_documentation_shows() -> None:
    """structlog over the standard logging, as many apps set it up."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def test_an_app_that_sets_up_structlog_has_its_lines_once_and_ours_stay_ours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _configure("info", "json")
    _as_its_documentation_shows()
    structlog.get_logger("app").warning("the app", n=1)
    log.logger().warning("from forkq", n=2)
    first, second = map(json.loads, capfd.readouterr().err.splitlines())
    assert (first["event"], first["logger"]) == ("n=1 event='the app'", "app")
    assert (second["event"], second["n"], second["level"]) == ("from forkq", 2, "warning")


def test_a_record_that_logs_while_it_is_formatted_does_not_recurse(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class LogsInStr:
        def __str__(self) -> str:
            logging.getLogger("inner").warning("%s", self)
            return "its text"

    _configure("info", "logfmt")
    logging.getLogger("outer").warning("%s", LogsInStr())
    [line] = capfd.readouterr().err.splitlines()
    assert "its text" in line


def test_records_of_logging_keep_their_level(capfd: pytest.CaptureFixture[str]) -> None:
    _configure("debug", "json")
    app = logging.getLogger("app")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        app.log(level, "line")
    app.setLevel(logging.DEBUG)
    app.debug("wanted")
    app.setLevel(logging.NOTSET)
    found = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    levels = ["debug", "info", "warning", "error", "critical", "debug"]
    assert [line["level"] for line in found] == levels


@pytest.mark.parametrize("style", STYLES)
def test_no_value_makes_its_line_fail(capfd: pytest.CaptureFixture[str], style: str) -> None:
    _configure("info", style)
    values: dict[str, Any] = {
        "a key": 1,
        "raises": RaisesInRepr(),
        "list": [RaisesInRepr()],
        "big": 10**5000,
    }
    log.logger().info("all values", **values, surrogate="\udcff", nothing=None, deep={"a": {1, 2}})
    logging.getLogger("app").info("%d", "no number", exc_info=(None, None, None))
    text = " ".join(capfd.readouterr().err.split())  # the console breaks long lines
    assert "all values" in text
    assert "cannot be shown" in text
    assert "do not fit" in text


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 - any error is the point
        return raised


class NotesThatRaise(Exception):
    @property
    def __notes__(self) -> NoReturn:
        raise RuntimeError


class NoText(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit

    __repr__ = __str__


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("error", [SYNTAX_ERROR, NotesThatRaise("x"), NoText("x")])
def test_any_error_can_be_logged(
    capfd: pytest.CaptureFixture[str], style: str, error: BaseException
) -> None:
    _configure("info", style)
    log.logger().warning("failed", exc_info=_raised(error))
    text = capfd.readouterr().err
    assert type(error).__name__ in text
    assert "_raised" in text  # its frames


@pytest.mark.parametrize("style", STYLES)
def test_no_control_character_reaches_the_log(
    capfd: pytest.CaptureFixture[str], style: str
) -> None:
    _configure("info", style)
    error = _raised(ValueError(HOSTILE))
    facts: dict[str, Any] = {
        "class": HOSTILE,
        HOSTILE: HOSTILE,
        "several": [HOSTILE],
        "x": {HOSTILE},
    }
    log.logger().warning(HOSTILE, **facts, exc_info=error)
    logging.getLogger(HOSTILE).warning(HOSTILE)
    text = capfd.readouterr().err
    assert re.findall(r"[^\n\t -~]", text) == []


@pytest.mark.parametrize("style", STYLES)
def test_long_names_and_messages_are_cut(capfd: pytest.CaptureFixture[str], style: str) -> None:
    _configure("info", style)
    endless = "a" * 99_990 + "the end"
    log.logger().info("start", **{"class": endless, "jid": endless, "queue": endless})
    assert len(capfd.readouterr().err) < 1000
    log.logger().info(endless, reason=endless, exc_info=_raised(ValueError(endless)))
    text = capfd.readouterr().err
    assert len(text) < 100_000
    assert "the end" in text


def _journal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")


@pytest.mark.parametrize("style", STYLES)
def test_a_value_of_several_lines_can_be_read_on_the_console(
    capfd: pytest.CaptureFixture[str], style: str
) -> None:
    """Elsewhere one event stays one line."""
    _configure("info", style)
    log.logger().error("cannot boot", child="default.0", reason="Traceback:\n  File\nValueError: x")
    first, *rest = capfd.readouterr().err.splitlines()
    assert "default.0" in first
    assert rest == (["Traceback:", "  File", "ValueError: x"] if style == "console" else [])


@pytest.mark.parametrize("style", STYLES)
def test_the_journal_gets_the_priority_of_each_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    _journal(monkeypatch)
    _configure("debug", style)
    out = log.logger()
    out.debug("one")
    out.info("one")
    out.warning("one", exc_info=_raised(ValueError("two\nlines")))
    out.error("one")
    logging.getLogger("app").critical("one")
    log.flush()
    found = capfd.readouterr().err.splitlines()
    prefixes = [line[:3] for line in found]
    assert {line[0] + line[2] for line in found} == {"<>"}
    assert list(dict.fromkeys(prefixes)) == ["<7>", "<6>", "<4>", "<3>", "<2>"]
    assert len(found) == 5 if style != "console" else len(found) > 8


@pytest.mark.parametrize("stream", [None, "1:2", "rubbish"])
def test_elsewhere_no_line_has_a_prefix(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stream: str | None
) -> None:
    """JOURNAL_STREAM is inherited: a tree that a service starts may write elsewhere."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if stream is not None:
        monkeypatch.setenv("JOURNAL_STREAM", stream)
    _configure("info", "logfmt")
    log.logger().error("one")
    assert capfd.readouterr().err.startswith("timestamp=")


def _wait_for(pid: int) -> None:
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, what="the end of the fork")


def test_a_fork_while_another_thread_logs_can_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many forks while another thread logs without a pause: none hangs."""
    _configure("info", "logfmt")
    over = threading.Event()

    def log_lines() -> None:
        while not over.is_set():
            log.logger().info("line")

    thread = threading.Thread(target=log_lines)
    thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                log.logger().info("fork")
                os._exit(0)
            _wait_for(pid)
    finally:
        over.set()
        thread.join(10)


def test_a_problem_is_logged_when_it_begins_and_not_again_while_it_lasts() -> None:
    lines = RecordedLog()
    once = LogOnce(lines)
    once.warning("a", "bad", key="a")
    once.warning("a", "bad", key="a")
    once.warning("b", "bad", key="b")
    assert (once.over("a"), once.over("a"), once.over("c")) == (True, False, False)
    once.warning("a", "bad", key="a again")
    assert [values["key"] for _, _, values in lines.lines] == ["a", "b", "a again"]
