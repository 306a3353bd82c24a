"""Makes docs/configuration.md from the code: ``python -m tests.support.configuration_page``.

All of it comes from the declarations that the file is checked against: a type with a ``Key``
among its annotations, and the default of its field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from forkq.config.config import TABLES
from forkq.config.schema import Key, expectation, key_of, walk
from forkq.cron.entry import Entry, Schedule
from tests.support.documents import ROOT

PAGE = ROOT / "docs" / "configuration.md"
_HEADINGS: Mapping[str, str] = {
    "capsules": "[capsules.NAME]",
    "cron": "[[cron]]",
}
_DEFAULTS_OF_CRON: Mapping[str, object] = {
    **{field.name: field.default for field in fields(Entry) if field.default is not MISSING},
    "tz": Schedule.parse("@daily").tz,
    "missed": "once",
}
_HEAD = """\
# Configuration

<!-- Made by `python -m tests.support.configuration_page`; change forkq/config/ instead. -->

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
        *(_row(table, path, hint) for path, hint in _keys(table)),
    ]
    return "\n".join(lines) + "\n"


def _keys(table: str) -> list[tuple[tuple[str, ...], object]]:
    """Each key of a table that has a value, and the type of the value."""
    found = walk({table: TABLES[table]})
    return [(path, hint) for path, hint in found if not isinstance(hint, Mapping)]


def _row(table: str, path: tuple[str, ...], hint: object) -> str:
    key = key_of(hint)
    name = ".".join(path[2 if table == "capsules" else 1 :])
    cells = (
        f"`{name}`",
        expectation(hint),
        key.default or _default(table, key, path[-1]),
        ", ".join(f"`{variable}`" for variable in key.variables),
        f"`{key.flag}`" if key.flag else "",
        key.about,
    )
    return f"| {' | '.join(cells)} |"


def _default(table: str, key: Key, name: str) -> str:
    """The default of the dataclass, as TOML writes it."""
    default: Any = _DEFAULTS_OF_CRON.get(name) if table == "cron" else key.initial
    if default is None:
        return "required"
    whole = isinstance(default, float) and default.is_integer()
    return f"`{json.dumps(int(default) if whole else default)}`"


if __name__ == "__main__":
    Path(PAGE).write_text(page(), encoding="utf-8")
