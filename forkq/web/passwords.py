"""Passwords of the web UI: hashed with scrypt, checked once for each browser's header."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from typing import Final

from starlette.requests import HTTPConnection

_COST: Final = 1 << 15  # about 100 ms and 32 MiB
_BLOCK: Final = 8
_PARALLEL: Final = 1
_MEMORY: Final = 256 << 20  # bytes that a hash in the configuration may ask for
_LONGEST: Final = 1024  # characters of a password
_MOST_KNOWN: Final = 1000
_PATIENCE: Final = 5.0  # seconds for the turn of a password


def hash_password(password: str) -> str:
    """``password`` as forkq.toml keeps it: ``scrypt:N:r:p:SALT:HASH``."""
    salt = secrets.token_bytes(16)
    made = _scrypt(password, salt, _COST, _BLOCK, _PARALLEL)
    return ":".join(("scrypt", str(_COST), str(_BLOCK), str(_PARALLEL), _text(salt), _text(made)))


def verify(password: str, hashed: str) -> bool:
    """Whether ``hashed`` was made of ``password``. Takes as long for a wrong one."""
    _, cost, block, parallel, salt, expected = hashed.split(":")
    made = _scrypt(password, base64.b64decode(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(made, base64.b64decode(expected))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=32)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


class BasicPassword:
    """An ``authenticate`` for one password, which the browser asks for. The user types any name; it
    stands in the audit log. One unknown password is checked at a time, so that guessing is slow."""

    def __init__(self, hashed: str) -> None:
        self._hashed = hashed
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, str] = {}  # header's MAC -> user
        self._lock = threading.Lock()

    def __call__(self, request: HTTPConnection) -> str | None:
        """The name of the user. Runs in a thread: a hash takes its time."""
        header = request.headers.get("authorization", "")
        mark = hmac.digest(self._key, header.encode(), "sha256")
        if mark in self._known:
            return self._known[mark]
        user, password = _credentials(header)
        if not password or len(password) > _LONGEST:
            return None
        if not self._is_right(password):
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[mark] = user
        return user

    def _is_right(self, password: str) -> bool:
        if not self._lock.acquire(timeout=_PATIENCE):
            return False
        try:
            return verify(password, self._hashed)
        finally:
            self._lock.release()


def _credentials(header: str) -> tuple[str, str]:
    """Name and password of HTTP Basic; two empty strings if it is not that."""
    kind, _, value = header.partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return user[:100] or "(no name)", password
