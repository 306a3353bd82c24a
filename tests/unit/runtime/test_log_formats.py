"""The console's format, the line of a job that is done, and tracebacks without forkq's frames."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from forkq.errors import InvalidJob
from forkq.runtime import app_frames, app_logging, log
from forkq.runtime.app_frames import app_traceback
from forkq.runtime.done_lines import DoneJob
from forkq.runtime.log_console import WIDTH
from forkq.wire.printable import last_line

JID = "7ff3cf34efff6d76635f23dd"
DONE = DoneJob(1795216065.25, "app.Mail", JID, "default", 1, 2.5, 0.125)
HOSTILE = "Job\x1b[2J%s\x9b31m"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_state", log._State())
    monkeypatch.setattr(app_logging, "install", lambda *_: None)


def _lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    log.flush()
    return capfd.readouterr().err.splitlines()


@pytest.mark.parametrize(
    "done",
    [
        DONE,
        DONE._replace(waited=None),
        DONE._replace(name="100%s %(x)d %"),
        DONE._replace(queue="77777.125"),  # a mark of the template
        DONE._replace(jid="a b", name="two words"),
        DONE._replace(jid=None),
        DONE._replace(jid=["x"], name=["x"]),
        DONE._replace(jid="x" * 1000, name="y" * 1000),
    ],
)
@pytest.mark.parametrize("style", ["json", "logfmt"])
def test_the_short_way_and_the_long_way_write_the_same(
    capfd: pytest.CaptureFixture[str], style: str, done: DoneJob
) -> None:
    log.configure("info", style)
    log.bind(pid=7, capsule="default.0")
    write = log.done_writer()
    write(done)
    log.logger().info("done", **done.values())
    short, long = _lines(capfd)
    number = re.compile(r"(\.\d*?)0+(?=\D|$)")
    assert number.sub(r"\1", short) == number.sub(r"\1", long)
    assert "2026-11-20T" in short or "event" in short


def test_machines_get_every_value_of_a_job_that_is_done(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure("info", "json")
    log.done_writer()(DONE)
    (line,) = map(json.loads, _lines(capfd))
    assert line == {
        "timestamp": "2026-11-20T23:07:45.250000Z",
        "level": "info",
        "event": "done",
        "class": "app.Mail",
        "jid": JID,
        "queue": "default",
        "attempt": 1,
        "waited": 2.5,
        "elapsed": 0.125,
    }


def test_the_console_has_local_time_class_what_how_long_and_a_short_jid(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure("info", "console")
    log.done_writer()(DONE)
    (line,) = _lines(capfd)
    clock = time.strftime("%H:%M:%S", time.localtime(DONE.at))
    head = f"{clock}.250   app.Mail"
    assert re.fullmatch(rf"{re.escape(head)} +done in 125 ms, waited 2.5 s +7ff3cf34", line)
    assert len(line) == WIDTH


@pytest.mark.parametrize("name", ["Mail", "a.package.of.many.modules.with.a.Job", HOSTILE])
def test_no_line_of_the_console_is_wider_than_100_columns(
    capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """A longer text goes on in the next lines; the jid stays in one piece at the end of the
    first."""
    log.configure("info", "console")
    log.bind(pid=7, capsule="default.0")
    job: dict[str, Any] = {"class": name, "jid": JID, "queue": "default", "attempt": 1}
    text = "many words " * 30
    log.logger().info(text, **job, size=7)
    log.logger().warning("outside of a job", path="/" + "x/" * 20, why=text)
    log.done_writer()(DONE._replace(name=name))
    found = _lines(capfd)
    assert max(map(len, found)) <= WIDTH
    assert found[0].endswith(" 7ff3cf34")
    assert "size=7" in found[found.index(next(one for one in found if " W " in one)) - 1]
    assert not re.findall(r"[^ -~]", "".join(found))


def _raised(source: str, file: str, **names: Any) -> BaseException:
    """What this source raises when it runs as that file."""
    try:
        exec(compile(source, file, "exec"), names)  # noqa: S102 - the file's name is the point
    except BaseException as error:  # noqa: BLE001 - any
        trace = error.__traceback__
        return error.with_traceback(trace and trace.tb_next)  # without this function
    raise AssertionError


OWN = f"{app_frames._PACKAGE}child/processor.py"


def _through_forkq(source: str) -> BaseException:
    """forkq calls the app's code, which is this source."""

    def app() -> None:
        exec(compile(source, "/srv/app/jobs.py", "exec"), {})  # noqa: S102

    return _raised("def run():\n    app()\nrun()", OWN, app=app)


def test_a_traceback_shows_the_apps_frames_first_and_none_of_forkqs() -> None:
    text = app_traceback(_through_forkq("def f():\n    1 / 0\nf()"))
    assert "processor.py" not in text
    assert text.index("/srv/app/jobs.py") > 0
    assert text.endswith("ZeroDivisionError: division by zero")


def test_chained_errors_lose_forkqs_frames_too() -> None:
    text = app_traceback(
        _through_forkq("try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('x') from e")
    )
    assert text.count("Traceback") == 2
    assert "processor.py" not in text


def test_an_error_of_forkqs_is_its_message_and_a_fault_in_forkq_keeps_its_frames() -> None:
    refused = _raised("raise InvalidJob('Mail takes 1 argument')", OWN, InvalidJob=InvalidJob)
    assert app_traceback(refused) == "forkq.errors.InvalidJob: Mail takes 1 argument"
    fault = _raised("1 / 0", OWN)
    assert "processor.py" in app_traceback(fault)


def test_a_syntax_error_shows_its_place_and_no_frame_of_forkqs() -> None:
    text = app_traceback(_through_forkq("compile('def f(:', '/srv/app/other.py', 'exec')"))
    assert "processor.py" not in text
    assert last_line(text) == "SyntaxError: invalid syntax (/srv/app/other.py, line 1)"
    wrong = _raised("compile('def f(:', '/srv/app/jobs.py', 'exec')", OWN)  # as an import does
    assert "processor.py" not in app_traceback(wrong)
    assert last_line(app_traceback(wrong)).endswith(" (/srv/app/jobs.py, line 1)")


def test_one_line_of_an_error_has_its_place() -> None:
    text = app_traceback(_through_forkq("1 / 0"))
    assert re.fullmatch(r"ZeroDivisionError: division by zero \(.+, line \d+\)", last_line(text))
    assert last_line("RuntimeError: no traceback") == "RuntimeError: no traceback"
    assert last_line("") == ""
