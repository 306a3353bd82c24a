"""Adds the key and the remedy to Redis's error WRONGTYPE, which names neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .damage import damaged, message
from .redis_py import Command, exceptions

_WRONG_TYPE: Final = "WRONGTYPE"


class DamagedKey(exceptions.ResponseError):
    """A WRONGTYPE with the damaged key and its remedy."""


def damaged_among(keys: Sequence[str], types: Sequence[Any]) -> DamagedKey | None:
    """The error that names those of a script's ``keys`` that are damaged, if there are any;
    ``types`` are the replies to TYPE."""
    found = [each.decode() if isinstance(each, bytes) else "none" for each in types]
    wrong = damaged(keys, found)
    return DamagedKey(f"{_WRONG_TYPE} {message(wrong)}") if wrong else None


def with_key(error: exceptions.ResponseError, command: Command) -> exceptions.ResponseError:
    """``error``; if it is a WRONGTYPE, a DamagedKey that names the key of its command."""
    if not str(error).startswith(_WRONG_TYPE):
        return error
    if command[0] != "EVALSHA":
        return DamagedKey(f"{_WRONG_TYPE} {message([str(command[1])])}")
    count = int(command[2])
    if count == 1:
        return DamagedKey(f"{_WRONG_TYPE} {message([str(command[3])])}")
    keys = ", ".join(f'"{key}"' for key in command[3 : 3 + count])
    return DamagedKey(f"{_WRONG_TYPE} one of the keys {keys} holds something else; see TYPE")
