"""Makes docs/configuration.md from the code: ``python -m tests.support.configuration_page``.

Types come from the declarations that the file is checked against, defaults from the dataclasses,
sentences, variables and flags from ``forkq.config.keys``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from forkq.config.capsule import Capsule
from forkq.config.config import TABLES, Config, LogSettings, RedisSettings
from forkq.config.keys import KEYS
from forkq.config.schema import Each, Either, Rows, expectation
from forkq.config.web_table import WebTable
from forkq.cron.entry import Entry, Schedule
from tests.support.documents import ROOT

PAGE = ROOT / "docs" / "configuration.md"
_OWNERS: Mapping[str, type] = {
    "forkq": Config,
    "redis": RedisSettings,
    "log": LogSettings,
    "web": WebTable,
    "capsules": Capsule,
    "cron": Entry,
}
_HEADINGS: Mapping[str, str] = {
    "capsules": "[capsules.NAME]",
    "cron": "[[cron]]",
}
_HEAD = """\
# Configuration

<!-- Made by `python -m tests.support.configuration_page`; change forkq/config/keys.py instead. -->

Every key of forkq.toml. The file is `-C FILE`, else `FORKQ_CONFIG`, else the first forkq.toml from
the working directory upwards. A process that only pushes then looks upwards from the modules that
define its jobs, and from its program. A forkq.toml above counts only if it belongs to you, to root
or to the owner of the folder where the search begins, and is not writable by all. A flag is
stronger than a variable, a variable stronger than the file. Every key but `environment` may stand
under `[environments.NAME]` too, and counts there when that environment is in force; `[[cron]]`
there replaces the whole list. `${VAR}` and `${VAR:-default}` are expanded in every string. `-q` and
`--concurrency` are for the capsule `default`, or for the only one in the file.

`forkq config show` prints every value that is in force, and where it comes from. An example with
every key is [deploy/forkq.toml](../deploy/forkq.toml). The keys of rules are names of queues or
patterns: [limits.md](limits.md).
"""


def page() -> str:
    """The whole text of docs/configuration.md."""
    return "\n".join([_HEAD, *(_section(table) for table in TABLES)])


def _section(table: str) -> str:
    heading = _HEADINGS.get(table, f"[{table}]")
    lines = [
        f"## `{heading}`",
        "",
        "| key | type | default | variable | flag | meaning |",
        "|---|---|---|---|---|---|",
        *(_row(table, path, hint) for path, hint in _keys((table,), TABLES[table])),
    ]
    return "\n".join(lines) + "\n"


def _keys(path: tuple[str, ...], expected: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Each key below ``path`` that has a value, and the type of the value."""
    if isinstance(expected, Each):
        yield from _keys((*path, "NAME"), expected.item)
    elif isinstance(expected, Rows):
        yield from _keys((*path[:-1], f"{path[-1]}[N]"), expected.item)
    elif isinstance(expected, Either):
        yield path, expected.short
        yield from _keys(path, expected.long)
    elif isinstance(expected, Mapping):
        for key, below in expected.items():
            yield from _keys((*path, key), below)
    else:
        yield path, expected


def _row(table: str, path: tuple[str, ...], hint: object) -> str:
    key = KEYS[".".join(path)]
    short = table in _OWNERS and path[1] != "shards[N]"
    name = path[-1] if short else ".".join(path[1:])
    cells = (
        f"`{name}`",
        expectation(hint),
        key.default or _default(table, path[-1]),
        ", ".join(f"`{variable}`" for variable in key.variables),
        f"`{key.flag}`" if key.flag else "",
        key.about,
    )
    return f"| {' | '.join(cells)} |"


def _default(table: str, key: str) -> str:
    """The default of the dataclass, as TOML writes it."""
    defaults = {field.name: field.default for field in dataclasses.fields(_OWNERS[table])}
    if table == "cron":
        defaults |= {"tz": Schedule.parse("@daily").tz, "missed": "once"}
    default = defaults.get(key, dataclasses.MISSING)
    if default is dataclasses.MISSING:
        return "required"
    whole = isinstance(default, float) and default.is_integer()
    return f"`{json.dumps(int(default) if whole else default)}`"


if __name__ == "__main__":
    Path(PAGE).write_text(page(), encoding="utf-8")
