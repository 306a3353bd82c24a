"""Whether a command prints what a document says that it prints."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

# In this order: an owner contains a number, a jid may be one.
_CHANGES = (
    # The short jid at the end of a log line stands where its first line breaks, which depends on
    # how long the run took: "1 ms" or "1.2 ms".
    (re.compile(r" +[0-9a-f]{8}$", re.MULTILINE), ""),
    (re.compile(r"[\w.-]+:\d+:(?:solo)?[0-9a-f]+"), "OWNER"),
    (re.compile(r"\b(?:[0-9a-f]{24}|[0-9a-f]{8})\b"), "JID"),
    (re.compile(r"\b\d[\d.,]* (?:ms|s|min|h|d)\b"), "TIME"),
    (re.compile(r"\bTIME ago\b|\bjust now\b"), "AGO"),
    (re.compile(r"\d[\d.,:-]*"), "N"),
    (re.compile(r"\s+"), " "),
)


def objects(printed: str) -> list[dict[str, Any]]:
    """What ``--json`` has printed: an object on each line."""
    found = [json.loads(line) for line in printed.splitlines()]
    assert all(type(one) is dict for one in found), printed
    return found


def same_shape(text: str) -> str:
    """The text with one word in place of what differs from run to run, and on one line. The host is
    called web1 in documents."""
    text = text.replace(f" {socket.gethostname()}", " web1")
    for pattern, word in _CHANGES:
        text = pattern.sub(word, text)
    return text.strip()


def assert_shown(printed: str, shown: str) -> None:
    """``printed``, of a document, is a part of ``shown``, from a run."""
    assert same_shape(printed) in same_shape(shown), f"{printed}\nis not what is shown:\n{shown}"
