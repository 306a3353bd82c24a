"""The app may log any value under any name: that raises nothing in the job, and each format has the
line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from forkq.runtime import log

pytestmark = pytest.mark.usefixtures("own_logging")

# Names that forkq's own values, structlog or the standard logging have, and impossible ones.
NAMES = (
    "timestamp", "level", "capsule", "class", "jid", "queue", "attempt", "logger", "pid", "error",
    "exception", "stack", "_at", "_sentence", "", "a b", "x\n\x1b", "args_",
)  # fmt: skip


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


VALUES: tuple[Any, ...] = (
    "noon", "\ud800", "x\n\x1b[31m", b"x", 5, 5.5, True, None, 10**5000, float("nan"), [1],
    Unprintable(), {"key": Unprintable()}, {Unprintable(): 1}, "x" * 30_000,
)  # fmt: skip


def _as_extra(name: str, value: Any) -> None:
    logging.getLogger("app").info("hello", extra={name: value})


def _as_dictionary(name: str, value: Any) -> None:
    logging.getLogger("app").info({"event": "hello", name: value})


def _by_structlog(name: str, value: Any) -> None:
    structlog.get_logger().info("hello", **{name: value})


def _as_message(name: str, value: Any) -> None:
    logging.getLogger("app").info({"event": value, name: "hello"})
    logging.getLogger("app").info(value, {name: "hello"})


def _booted(style: str) -> None:
    """A child with an app that sets up no logging. pytest's handlers are gone."""
    logging.getLogger().handlers[:] = []
    log.configure("info", style)
    log.bind(pid=7, capsule="default.0")
    log.respect_app(takeover=False)


@pytest.mark.parametrize("style", ["console", "json", "logfmt"])
@pytest.mark.parametrize("way", [_as_extra, _as_dictionary, _by_structlog, _as_message])
def test_any_value_under_any_name_is_a_line(
    style: str, way: Callable[[str, Any], None], capfd: pytest.CaptureFixture[str]
) -> None:
    _booted(style)
    for name in NAMES:
        for value in VALUES:
            way(name, value)
            text = capfd.readouterr().err
            assert text.count("\x1b") == 0
            assert "hello" in text or way is _as_message
            _check_stamp(style, text)


def _check_stamp(style: str, text: str) -> None:
    """Each line has the time at which it was logged, whatever the app calls so."""
    if style == "console":
        assert re.match(r"\d\d:\d\d:\d\d\.\d\d\d ", text)
        return
    line = text.splitlines()[0]
    stamp = json.loads(line)["timestamp"] if style == "json" else line.partition("=")[2][:27]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamp)


def test_a_value_of_forkqs_own_name_is_kept_under_another(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _booted("json")
    _as_extra("timestamp", "noon")
    assert json.loads(capfd.readouterr().err)["timestamp_"] == "noon"
    # structlog's TimeStamper and add_log_level say what the line says already.
    logging.getLogger("app").info({"event": "hello", "timestamp": "noon", "level": "info"})
    assert "noon" not in capfd.readouterr().err
