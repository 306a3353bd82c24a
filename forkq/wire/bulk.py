"""Bulk pushes: jobs that differ in their arguments. Any process; this module is light."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Final

from ..errors import InvalidJob, a_type, shown
from .payload import KEY, UNWRITABLE, Payload, dumps, encode

_BULK: Final = "a bulk push takes args=[[...], [...]], a list of argument lists"


@contextmanager
def in_row(done: Sized) -> Iterator[None]:
    """Adds to an InvalidJob the number of the row of a bulk push: the rows before it are in
    ``done``."""
    try:
        yield
    except InvalidJob as error:
        raise InvalidJob(f"row {len(done)} (the first is 0): {error}") from None


def rows_of(job: Payload) -> tuple[list[list[Any]], list[Any]]:
    """The argument lists of a bulk push, and ``at`` for each of them. Raises InvalidJob."""
    rows = job.get("args")
    if not isinstance(rows, list | tuple):
        raise InvalidJob(f"job {shown(job.get('class'))}: {_BULK}, not {a_type(type(rows))}")
    lists: list[list[Any]] = []
    with in_row(lists):
        for row in rows:
            if not isinstance(row, list | tuple):
                kind = type(row).__name__
                raise InvalidJob(f"job {shown(job.get('class'))}: {_BULK}, not a {kind}")
            lists.append(list(row))
    moments = job.get("at")
    if isinstance(moments, list | tuple):
        if len(moments) != len(rows):
            raise InvalidJob(
                f"job {job.get('class')!r}: {len(moments)} times `at` for {len(rows)} argument "
                "lists; pass one time, or one for each"
            )
        return lists, list(moments)
    return lists, [moments] * len(lists)


def jids_of(job: Payload, count: int) -> list[str] | None:
    """The jids that a bulk push of ``count`` jobs was given, one for each; None if it was given
    none. Raises InvalidJob."""
    given = job.get("jid")
    if given is None:
        return None
    jids = [given] if type(given) is str and count == 1 else given
    if not isinstance(jids, list | tuple) or len(jids) != count:
        raise InvalidJob(
            f"job {shown(job.get('class'))}: `jid` of a bulk push is {shown(given)}; pass a list "
            f"with one for each of the {count:,} argument lists (Client.push_bulk), or leave it out"
        )
    return list(jids)


def row_encoder(
    job: Payload, marks: tuple[bytes, bytes] | None = None
) -> Callable[[list[Any], str, str], bytes]:
    """A function that returns the JSON of ``job`` with other arguments, another jid, and the digest
    in the name of its lock ("" if it has none). ``marks``: the JSON of its marks around that.

    It encodes once what the rows share: a bulk push takes half of the CPU time that it would take
    if each job were encoded whole. Raises InvalidJob, as ``dumps`` does.
    """
    shared = {key: value for key, value in job.items() if key not in ("args", "jid", KEY)}
    middle, tail = b"", b"}"
    if marks is not None:  # the last key: scripts look for it there
        middle, tail = b',"%b":%b' % (KEY.encode(), marks[0]), marks[1] + b"}"
    head = dumps(shared)[:-1] + b',"args":'

    def encoded(args: list[Any], jid: str, lock: str) -> bytes:
        try:
            return b'%b%b,"jid":"%b"%b%b%b' % (
                *(head, encode(args), jid.encode()),
                *(middle, lock.encode(), tail),
            )
        except UNWRITABLE:
            return dumps({**job, "args": args, "jid": jid})  # names the value

    return encoded


@types.coroutine
def next_turn() -> Generator[None, None, None]:
    """Awaited: the event loop does what else is due. It is ``asyncio.sleep(0)``, for modules that
    do not import asyncio."""
    yield
