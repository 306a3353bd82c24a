"""SQLAlchemy: a session for each job, engines that survive a fork, and pushes that wait for the
commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, ParamSpec

from sqlalchemy import Engine, event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from forkq import registry
from forkq.default_client import default
from forkq.errors import ConfigError, InvalidJob, ServerUnavailable
from forkq.push import Pusher
from forkq.sharded_client import ShardedClient
from forkq.wire.payload import Payload
from forkq.wire.times import due

from .surround import surround

P = ParamSpec("P")

_WAITING: Final = "forkq.contrib.sqlalchemy"  # where a session's ``info`` has its pushes
_WITH_JID: Final = ("perform_async", "perform_in", "perform_at")


def session_per_job(sessions: scoped_session[Any], *engines: Engine) -> None:
    """Rolls back what a job has not committed of ``sessions``, and closes its session, when the job
    ends, fails or is interrupted. Call it once, where the app makes its sessions.

    Each child gets new connections of ``engines`` (``dispose_after_fork``), by default those of the
    sessions. Raises ConfigError if there are none.
    """
    dispose_after_fork(*(engines or _engines_of(sessions)))
    surround(lambda: _removing(sessions))


@contextmanager
def _removing(sessions: scoped_session[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        sessions.remove()


def dispose_after_fork(*engines: Engine) -> None:
    """Gives each child its own connections. With ``preload = true`` the master may have connected,
    and two processes must never use one connection. So each child leaves the master's connections
    alone, and makes its own."""

    @registry.on("fork")
    def dispose() -> None:
        for engine in engines:
            engine.dispose(close=False)


def push_after_commit(
    session: Session | scoped_session[Any],
    push: Callable[P, Any],
    *args: P.args,
    **kwargs: P.kwargs,
) -> str:
    """Calls ``push(*args)`` when ``session`` commits what it is doing now; never if that is rolled
    back, or the savepoint around this call. Returns the jid that the job will have ("" if ``push``
    is no method of a job: then it is just called). The job is checked and encoded now.

    ``session.commit()`` raises what the push raises; the rows are in the database then. Of several
    pushes, the first error ends the rest; with shards, a shard that is down does not. Raises
    InvalidJob for arguments that the push refuses.
    """
    owner = _session_of(session)
    job = _job_of(push, args, kwargs)
    if job is None:
        _wait(owner, partial(push, *args, **kwargs))
        return ""
    return default().push_later(job, partial(_wait, owner)) or ""


def _wait(session: Session, push: Callable[[], Any]) -> None:
    if _WAITING not in session.info:
        session.info[_WAITING] = _Waiting(session)
    session.info[_WAITING].add(session, push)


def _session_of(given: Any) -> Session:
    """The Session that ``given`` is or gives. Raises InvalidJob for an AsyncSession, whose commit
    runs in the loop."""
    session = given() if isinstance(given, scoped_session) else given
    if isinstance(session, Session):
        return session
    raise InvalidJob(
        f"push_after_commit takes a Session, not {type(session).__name__}: the commit of an "
        "AsyncSession must not wait for Redis; push after `await session.commit()`"
    )


class _Waiting:
    """The pushes of one session that wait, with the transaction or savepoint that they belong to,
    and the one that is being committed."""

    def __init__(self, session: Session) -> None:
        self._pushes: list[tuple[SessionTransaction, Callable[[], Any]]] = []
        self._committed: SessionTransaction | None = None
        event.listen(session, "after_commit", self._note_commit)
        event.listen(session, "after_transaction_end", self._end)

    def add(self, session: Session, push: Callable[[], Any]) -> None:
        """Adds a push. Begins a transaction if there is none, as a query does."""
        transaction = _current(session) or session.begin()
        self._pushes.append((transaction, push))

    def _note_commit(self, session: Session) -> None:
        """Notes a commit. SQLAlchemy calls this for a savepoint, too, and before the transaction is
        over."""
        self._committed = _current(session)

    def _end(self, session: Session, transaction: SessionTransaction) -> None:
        """Ends a transaction or a savepoint. If a commit came before, its pushes go to the
        transaction around it, or to Redis; else nowhere."""
        ended = [push for of, push in self._pushes if of is transaction]
        self._pushes = [entry for entry in self._pushes if entry[0] is not transaction]
        if self._committed is not transaction:
            return
        self._committed = None
        if transaction.parent is not None:
            self._pushes += [(transaction.parent, push) for push in ended]
        else:
            _call_each(ended)


def _call_each(pushes: list[Callable[[], Any]]) -> None:
    """Calls each push. The first that fails ends it. But a shard that is down keeps no other one
    from its jobs."""
    down: ServerUnavailable | None = None
    for push in pushes:
        try:
            push()
        except ServerUnavailable as error:
            if not isinstance(default(), ShardedClient):
                raise
            down = down or error
    if down is not None:
        raise down


def _current(session: Session) -> SessionTransaction | None:
    """The innermost savepoint, or the transaction."""
    return session.get_nested_transaction() or session.get_transaction()


def _job_of(push: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload | None:
    """The job that the call would push; None if ``push`` is no method of a job. Raises InvalidJob
    if the arguments do not fit."""
    pusher, name = getattr(push, "__self__", None), getattr(push, "__name__", "")
    if not isinstance(pusher, Pusher) or name not in _WITH_JID:
        return None
    if name == "perform_async":
        return pusher.payload(*args, **kwargs)
    moment, *rest = args
    due(moment)
    return {**pusher.payload(*rest, **kwargs), "at": moment}


def _engines_of(sessions: scoped_session[Any]) -> list[Engine]:
    factory: Any = sessions.session_factory
    keywords = getattr(factory, "kw", {})
    bound = [keywords.get("bind"), *(keywords.get("binds") or {}).values()]
    engines = [each for each in bound if isinstance(each, Engine)]
    if not engines:
        raise ConfigError("the sessions have no engine: give it, session_per_job(sessions, engine)")
    return engines
