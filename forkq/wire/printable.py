"""Makes text of the app and of payloads fit for a log line, a table and a terminal.

Job names, ids and messages may contain anything: ESC, 100,000 characters, or code that raises when
it is converted to text.
"""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import suppress
from types import NoneType, WrapperDescriptorType
from typing import Any, Final, NamedTuple

from ..errors import ForkqError, MalformedPayload, Shutdown
from .payload import loads_head

# How many characters of a name (a job's, a queue's, a jid) forkq shows.
NAME_LIMIT: Final = 200
# Where an error of the app has its texts, once it was asked for them.
_KEPT: Final = "__forkq_texts__"
_LONGEST_KEPT: Final = 100_000
_LONGEST_CHAIN: Final = 10
_PLAIN: Final = frozenset({str, int, float, bool, bytes, NoneType})
_ELLIPSIS: Final = "…"
# Where a SyntaxError is, and the line of a frame, which goes on with the name of a function.
_PLACE: Final = re.compile(r'\bFile "(.*)", (line \d+)(?:, in .*)?$')


def printable(text: str, keep: str = "") -> str:
    """``text`` with each character that could control a terminal written as an escape such as
    ``\\x1b``, except those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def cut(text: str, limit: int = NAME_LIMIT) -> str:
    """Cuts a text to at most ``limit`` characters: the beginning and, after a mark, the end."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return text[: limit - tail - 1] + _ELLIPSIS + text[len(text) - tail :]


def shown_name(text: object) -> str:
    """A job's class, a jid or a queue's name to show: printable and not too long."""
    return printable(cut(str(text)))


def class_and_jid(payload: bytes) -> str:
    """Class and jid of a job, to show. The arguments are not read: they may be large."""
    try:
        job = loads_head(payload)
    except MalformedPayload:
        return "malformed payload"
    return f"{shown_name(job['class'])} {shown_name(job.get('jid'))}"


def message(error: BaseException, limit: int) -> str:
    """The message of ``error``, in at most ``limit`` characters that UTF-8 can carry."""
    if (kept := _kept(error)) is not None:
        return kept.message[:limit]
    try:
        return str(error)[:limit].encode("utf-8", "replace").decode()
    except Shutdown:
        raise
    except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
        return f"(its message cannot be read: {type(bad).__name__})"


def class_name(kind: type[BaseException]) -> str:
    """The name of a class as forkq stores and shows it: with its module, unless it is a builtin."""
    try:
        module, own = kind.__module__, kind.__qualname__
    except Exception:  # noqa: BLE001 - the app's own metaclass
        return "(a class without a name)"
    return own if module == "builtins" else f"{module}.{own}"


def with_message(kind: str, text: str) -> str:
    """The name of an error's class and its message, if it has one."""
    return f"{kind}: {text}" if text else kind


def frames(error: BaseException) -> list[str]:
    """Where ``error`` was raised, outermost first: ``file:line:in `function'``. Reads no files."""
    return [
        printable(f"{frame.f_code.co_filename}:{line}:in `{frame.f_code.co_name}'")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]


def last_line(reason: str) -> str:
    """The last line of a traceback, which is the error itself, with the place of the error."""
    lines = reason.strip().splitlines()
    if not lines:
        return ""
    place = next(filter(None, map(_PLACE.search, reversed(lines))), None)
    return printable(lines[-1].strip() + (f" ({place[1]}, {place[2]})" if place else ""))


def traceback_of(error: BaseException) -> str:
    """The traceback of ``error``. Python's formatter fails on some errors (a SyntaxError of bytes,
    notes that raise): for those it is the frames and the class alone."""
    if (kept := _kept(error)) is not None:
        return kept.traceback
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    except Shutdown:
        raise
    except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
        known = f"{class_name(type(error))} (its traceback failed: {type(bad).__name__})"
        return "\n".join([*frames(error), known])


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def signal_name(number: object) -> str:
    """The name of a signal, such as ``SIGSEGV``."""
    try:
        return signal.Signals(number).name  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return f"signal {number}"


def keep_texts(error: BaseException) -> None:
    """Asks an error of the app for its texts, if code of the app makes them, and keeps them: called
    while the time limit of the job holds. What settles or logs the failure then asks no more."""
    with suppress(Exception):  # the app's own code: who needs the texts asks again
        if all(map(_is_plain, _chain(error))):
            return
        text = message(error, _LONGEST_KEPT)
        _attributes(error)[_KEPT] = _Texts(text, _traceback_with(error, text))


class _Texts(NamedTuple):
    message: str
    traceback: str


def _kept(error: BaseException) -> _Texts | None:
    found = _attributes(error).get(_KEPT)
    return found if isinstance(found, _Texts) else None


def _attributes(error: BaseException) -> dict[str, Any]:
    """The attributes of an error, without the app's own ways to get and to set them."""
    found: dict[str, Any] = object.__getattribute__(error, "__dict__")
    return found


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and the first of those that it came from."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _is_plain(error: BaseException) -> bool:
    """Whether no code of the app makes the text of this error."""
    if type(error).__module__ == ForkqError.__module__:
        return True
    is_builtin = isinstance(type(error).__str__, WrapperDescriptorType)
    return is_builtin and all(type(argument) in _PLAIN for argument in error.args)


def _traceback_with(error: BaseException, text: str) -> str:
    """The traceback of an error whose message is known."""
    if isinstance(error, SyntaxError) or hasattr(error, "exceptions"):  # these have more to show
        return traceback_of(error)
    told = Exception(text)
    told.__cause__, told.__context__ = error.__cause__, error.__context__
    told.__suppress_context__ = error.__suppress_context__
    if notes := _attributes(error).get("__notes__"):
        _attributes(told)["__notes__"] = notes
    shown = traceback.TracebackException(type(error), told, error.__traceback__)
    return "".join(shown.format()).rstrip()
