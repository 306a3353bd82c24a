"""The Lua scripts: one atomic move per file, its keys and arguments documented on top of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA1 by which the server knows it."""

    name: str
    text: bytes
    sha: bytes


def _load(name: str) -> Script:
    text = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


ADD = _load("add")
BURY = _load("bury")
CLAIM = _load("claim")
CONTROL = _load("control")
DUE = _load("due")
ENDED = _load("ended")
FETCH = _load("fetch")
FIND = _load("find")
FIND_LIST = _load("find_list")
FLUSH = _load("flush")
LEASES = _load("leases")
MARK = _load("mark")
NOTE = _load("note")
PUBLISH = _load("publish")
REBASE = _load("rebase")
RECORD = _load("record")
RECOVER = _load("recover")
REQUEUE = _load("requeue")
RESIGN = _load("resign")
RETRY = _load("retry")
TAKE = _load("take")
TALLY = _load("tally")
TICK = _load("tick")
