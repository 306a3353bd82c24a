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


BURY = _load("bury")
DUE = _load("due")
FETCH = _load("fetch")
LEASES = _load("leases")
RECORD = _load("record")
RECOVER = _load("recover")
REQUEUE = _load("requeue")
RETRY = _load("retry")
