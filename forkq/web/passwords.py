"""Passwords of the web UI: hashed with scrypt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from starlette.requests import HTTPConnection

_COST: Final = 1 << 15  # about 100 ms and 32 MiB
_BLOCK: Final = 8
_PARALLEL: Final = 1
_MEMORY: Final = 256 << 20  # bytes that a hash in the configuration may ask for


def hash_password(password: str) -> str:
    """``password`` as forkq.toml keeps it: ``scrypt:N:r:p:SALT:HASH``."""
    salt = secrets.token_bytes(16)
    made = _scrypt(password, salt, _COST, _BLOCK, _PARALLEL)
    return ":".join(("scrypt", str(_COST), str(_BLOCK), str(_PARALLEL), _text(salt), _text(made)))


def verify(password: str, hashed: str) -> bool:
    """Whether ``hashed`` was made of ``password``. It takes as long for a wrong password."""
    _, cost, block, parallel, salt, expected = hashed.split(":")
    made = _scrypt(password, base64.b64decode(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(made, base64.b64decode(expected))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=32)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def credentials(request: HTTPConnection) -> tuple[str, str]:
    """Name and password of HTTP Basic; two empty strings if it is not that."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return user[:100] or "(no name)", password
