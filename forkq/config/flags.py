"""The flags and variables that set a key of the configuration, and the reading of them.

Used by ``config`` only. What a key may hold is said in ``config``; here stands who can say it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .schema import Table, converted, nearest

COMMAS = r"\s*,\s*"
SPACES = r"[\s;]+"  # queues already have a comma before the weight

# Variables of forkq that are no key of the configuration, and prefixes that belong to others.
OTHER_VARIABLES = frozenset({"FORKQ_CONFIG"})
FOREIGN_PREFIXES = ("FORKQ_DEMO_", "FORKQ_TEST_", "FORKQ_BENCH_")

Given = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Option:
    """One key that can be set from outside the file.

    ``flag`` is its name among the parsed flags, ``spelling`` what a user types. The first of
    ``variables`` that is set counts; ``split`` is the pattern that cuts its text into a list.
    """

    table: str
    key: str
    variables: tuple[str, ...]
    flag: str = ""
    spelling: str = ""
    split: str = ""

    def found(
        self, flags: Mapping[str, Any], environ: Mapping[str, str]
    ) -> tuple[str, object] | None:
        """What was given, after the name to blame if it is wrong; a flag before any variable."""
        value = flags.get(self.flag)
        if value not in (None, "", (), []):
            return self.spelling, list(value) if isinstance(value, tuple) else value
        for name in self.variables:
            text = environ.get(name, "").strip()
            if text:
                return name, self._cut(text)
        return None

    def _cut(self, text: str) -> object:
        return [part for part in re.split(self.split, text) if part] if self.split else text


# The table "capsule" is the one capsule that -q and -c are about; config decides which that is.
OPTIONS = (
    Option("forkq", "app", ("FORKQ_REQUIRE",), "require", "-r", COMMAS),
    Option("forkq", "workers", ("FORKQ_WORKERS",), "workers", "--workers"),
    Option("forkq", "timeout", ("FORKQ_TIMEOUT",), "timeout", "--timeout"),
    Option("forkq", "environment", ("FORKQ_ENVIRONMENT",), "environment", "--environment"),
    Option("forkq", "tag", ("FORKQ_TAG",), "tag", "--tag"),
    Option("forkq", "pidfile", ("FORKQ_PIDFILE",), "pidfile", "--pidfile"),
    Option("forkq", "preload", ("FORKQ_PRELOAD",)),
    Option("forkq", "boot_timeout", ("FORKQ_BOOT_TIMEOUT",)),
    Option("forkq", "silent_after", ("FORKQ_SILENT_AFTER",)),
    Option("redis", "url", ("FORKQ_REDIS", "REDIS_URL"), "redis", "--redis"),
    Option("log", "level", ("FORKQ_LOG_LEVEL",), "log_level", "--log-level"),
    Option("log", "format", ("FORKQ_LOG_FORMAT",), "log_format", "--log-format"),
    Option("capsule", "queues", ("FORKQ_QUEUES",), "queues", "-q", SPACES),
    Option("capsule", "concurrency", ("FORKQ_CONCURRENCY",), "concurrency", "--concurrency"),
)


def read_options(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    tables: Mapping[str, Table],
    problems: list[str],
) -> Given:
    """Every key given by a flag or a variable, by table; what is wrong joins ``problems``."""
    given: Given = {name: {} for name in tables}
    for option in OPTIONS:
        found = option.found(flags, environ)
        if found is None:
            continue
        name, value = found
        try:
            hint = tables[option.table][option.key]
            given[option.table][option.key] = converted(value, hint, from_text=True)
        except ConfigError as error:
            problems.append(f"{name}: {error}")
    return given


def misspelt(environ: Mapping[str, str], used: Iterable[str]) -> Iterator[str]:
    """A problem for each FORKQ_ variable that is unknown, but close to a known one.

    Others are let be: people name things after their tools. So are those that the file ``used``.
    """
    known = {name for option in OPTIONS for name in option.variables} | OTHER_VARIABLES
    ours = {name.removeprefix("FORKQ_").lower(): name for name in known if _is_ours(name)}
    for name in sorted(set(environ) - known - set(used)):
        if _is_ours(name):
            word = name.removeprefix("FORKQ_").lower()
            near = nearest(word, list(ours), 0.7) or _begun(word, ours)
            if near is not None:
                yield f"{name}: no such variable, the nearest one is {ours[near]}"


def _begun(word: str, words: Iterable[str]) -> str | None:
    """FORKQ_ENV and FORKQ_LOG are too short for a measure of likeness, but clear enough."""
    return next((known for known in sorted(words) if word and known.startswith(word)), None)


def _is_ours(name: str) -> bool:
    return name.startswith("FORKQ_") and not name.startswith(FOREIGN_PREFIXES)
