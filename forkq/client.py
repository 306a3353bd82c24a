"""Pushing jobs. Any process: this module and what it imports must stay light.

The first push imports redis-py, which is not light (store/route.py, docs/decisions/006).
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from . import middleware, registry
from .bulk import in_row, row_encoder, rows_of
from .errors import ConfigError, Duplicate, ForkqError, InvalidJob, shown
from .store.route import Access, EncodedJob, Route, Wait
from .wire.keys import Keys
from .wire.payload import (
    DEFAULT_QUEUE,
    KEY,
    MAX_NESTING,
    MAX_SIZE,
    Payload,
    PayloadBounds,
    new_jid,
    new_jids,
)
from .wire.redis_url import EMBEDDED, check_prefix, checked_url
from .wire.times import due, now
from .wire.validation import StrictArgs, check_args, check_shape, in_places

if TYPE_CHECKING:
    from .features.marked import Completed
    from .features.unique.parts import Unique
    from .limits.rules import Rulebook
    from .servers import Server, Servers
    from .store.connection import RedisConnection
    from .wire.password_source import PasswordSource


_log: Final = logging.getLogger("forkq")
# Where a program defines its own jobs; multiprocessing calls it by the second name.
_PROGRAMS: Final = ("__main__.", "__mp_main__.")
# What no two jobs share, and may be given all the same.
_UNSHARED: Final = ("jid", "created_at")


class Transactions:
    """How pushes wait for the database: an integration (forkq.contrib.django) sets it.

    ``on_commit`` calls a function when the transaction of this thread is committed, never if it is
    rolled back, and at once outside of one. ``all_wait``: every push waits so. ``held`` says which
    pushes wait now, for a test that misses a job; "" if none does.
    """

    on_commit: Callable[[Callable[[], None]], None] | None = None
    held: Callable[[], str] | None = None
    all_wait = False


transactions: Final = Transactions()


class Client:
    """Pushes jobs to one Redis. Thread-safe, and safe to use on both sides of a fork.

    Job classes push with the one of ``default_client.py``. It pushes no payload of more than
    ``max_payload_size`` bytes of JSON, or of more than ``max_nesting`` levels. A password that the
    URL does not have is read from ``password_source`` at each connect. A push waits for ``wait``
    replicas, for ``wait_timeout`` seconds, or for half of ``timeout`` if that is less. ``expire``:
    by queue or pattern, after how many seconds a job expires that does not say so itself.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        pool: int = 10,
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
        strict_args: StrictArgs = "raise",
        max_payload_size: int = MAX_SIZE,
        max_nesting: int = MAX_NESTING,
        rules: Rulebook | None = None,
        password_source: PasswordSource | None = None,
        wait: int = 0,
        wait_timeout: float = 0.1,
        expire: Mapping[str, float] | None = None,
    ) -> None:
        if url == EMBEDDED:
            raise ConfigError('for the embedded server call forkq.configure("embedded")')
        self.keys = Keys(prefix)
        self._strict = strict_args
        self._bounds = PayloadBounds(max_payload_size, max_nesting)
        self._rules = rules
        # Told of the queues of each push that Redis has taken.
        self.pushed_to: Callable[[Iterable[str]], None] | None = None
        check_prefix(checked_url(url), prefix)
        access = Access(url, prefix, timeout, connect_timeout, password_source)
        self._route = Route(access, self.keys, pool)
        self._servers: Servers | None = None
        self._expire = expire
        self._wait = wait
        self._wait_limit = max(1, math.ceil(min(wait_timeout, timeout / 2) * 1000))  # 0 is for ever

    @property
    def servers(self) -> Servers:
        """What ``forkq.api`` reads and changes: the Redis to which this client pushes."""
        if self._servers is None:
            self._servers = self._made_servers()
        return self._servers

    @middleware.around_push
    def push(self, job: Payload) -> str | None:
        """Pushes ``{"class": ..., "args": [...], ...}`` and returns its jid.

        ``at`` (see times.Moment) schedules it. Returns None if a middleware vetoed it. Raises
        InvalidJob for a job that could never run, ServerUnavailable if Redis cannot be reached (the
        text says whether the job may be in Redis), or ServerRefused if Redis refuses the push.
        """
        return self._deliver(with_defaults(job))

    def push_args(self, template: Payload, args: list[Any]) -> str | None:
        """``push`` of a job with these arguments. ``with_defaults`` has made ``template``: what all
        pushes of a job class share is checked once."""
        if middleware.pushes.members:
            given = {**template, "args": args}
            for key in _UNSHARED:
                if given[key] is None:
                    del given[key]
            return self.push(given)
        job = template.copy()
        job["args"] = args
        return self._deliver(job)

    def push_on_commit(self, job: Payload) -> str | None:
        """Pushes a job when the database transaction of this thread is committed; never if it is
        rolled back, and at once outside of one. Needs an integration (forkq.contrib.django).

        The job is checked and encoded now. What the push raises then, the commit raises.
        """
        return self.push_later(job, _on_commit)

    @middleware.around_push
    def push_later(self, job: Payload, wait: Callable[[Callable[[], None]], object]) -> str | None:
        """Checks and encodes ``job`` now, and gives ``wait`` a function that pushes it. Returns the
        jid, or None if a middleware vetoed the push."""
        encoded = self._encoded(with_defaults(job))
        if encoded is not None:
            wait(lambda: self._write_later([encoded]))
        return None if encoded is None else encoded.jid

    @middleware.around_push
    def push_bulk(self, job: Payload) -> list[str]:
        """Pushes one job per element of ``args``, a list of argument lists, in batches of 1,000.

        ``at`` may be one moment for all, or a list with one for each. Returns the jids of those
        that no middleware vetoed, with "" for a duplicate of a unique job. Everything is
        validated and encoded before anything is written. If Redis fails meanwhile, this raises
        ServerUnavailable with the jids of the jobs that are in Redis (``pushed``) and of those
        that may be (``unknown``).
        """
        rows, moments = rows_of(job)
        base = with_defaults({**job, "at": None, "args": []})
        alike = job.get("at") is None and not middleware.client.members and not _is_unique(base)
        encoded: list[EncodedJob | None] = []
        with in_row(encoded):
            encoded.extend(self._alike(base, rows) if alike else self._each(base, rows, moments))
        kept = [one for one in encoded if one is not None]
        duplicates = self._release(kept)
        return _settled(kept, duplicates) if duplicates else _jids(kept)

    def connection(self) -> AbstractContextManager[RedisConnection]:
        """A connected RedisConnection, for code that reads or changes Redis, as ``forkq.api`` does.

        Raises ServerUnavailable if Redis cannot be reached or refuses what is asked within.
        """
        return self._route.channel().connection()

    def close(self) -> None:
        """Closes the idle connections."""
        self._route.close()

    def _made_servers(self) -> Servers:
        from .servers import Servers  # noqa: PLC0415 - a push needs none

        return Servers([self._server(self.connection, self.keys)])

    def _server(
        self,
        connection: Callable[[], AbstractContextManager[RedisConnection]],
        keys: Keys,
        **named: Any,
    ) -> Server:
        from .limits.rules import Rulebook  # noqa: PLC0415 - a push needs none
        from .servers import Server  # noqa: PLC0415

        rules = self._rules or Rulebook()
        return Server(connection, keys, self._bounds, rules, self.push, **named)

    def _deliver(self, job: Payload) -> str | None:
        """Pushes ``job``, which has its defaults, or has it wait for the commit. Returns its jid;
        None if the middleware vetoed it."""
        encoded = self._encoded(job)
        if encoded is None:
            return None
        duplicates = self._release((encoded,))
        return _settled((encoded,), duplicates)[0] if duplicates else encoded.jid

    def _encoded(self, job: Payload) -> EncodedJob | None:
        """The EncodedJob of ``job``, which has its defaults, after the client middleware; None if
        the middleware vetoed it. The caller must not use ``job`` afterwards."""
        stamp = self._complete(job)
        if middleware.client.members:
            changed = _through_middleware(job)
            if changed is None:
                return None
            job, stamp = changed, self._complete(changed)
        at = job.pop("at", None)
        if at is None:
            job["enqueued_at"] = stamp
        wait = job.pop("wait") if "wait" in job else self._wait
        if self._expire:
            _add_expiry(job, self._expire)
        if KEY not in job:
            return EncodedJob(job["jid"], job["queue"], at, self._bounds.dumps(job), wait)
        made = _completed(job, at)
        payload = self._bounds.dumps(job)
        return EncodedJob(job["jid"], job["queue"], at, payload, wait, *made)

    def _complete(self, job: Payload) -> float:
        """Checks the arguments, and adds what no two jobs share. Returns the time."""
        check_args(job, self._strict)
        stamp = now()
        if job["jid"] is None:
            job["jid"] = new_jid()
        if job["created_at"] is None:
            job["created_at"] = stamp
        if "at" in job:
            _set_time(job)
        return stamp

    def _each(
        self, base: Payload, rows: Sequence[list[Any]], moments: Sequence[Any]
    ) -> Iterator[EncodedJob | None]:
        for args, at, jid in zip(rows, moments, new_jids(len(rows)), strict=True):
            yield self._encoded({**base, "at": at, "args": args, "jid": jid})

    def _alike(self, job: Payload, rows: Sequence[list[Any]]) -> Iterator[EncodedJob]:
        """The encoded jobs of a bulk push in which all jobs go to the queue now and no middleware
        may change one: what they share is encoded once."""
        del job["at"]
        wait = job.pop("wait", self._wait)
        job["enqueued_at"] = stamp = now()
        job["created_at"] = job["created_at"] or stamp
        if self._expire:
            _add_expiry(job, self._expire)
        made = _completed(job, None) if KEY in job else ()
        encode = row_encoder(job)
        name, queue, bounds = job["class"], job["queue"], self._bounds
        for job["args"], jid in zip(rows, new_jids(len(rows)), strict=True):
            check_args(job, self._strict)
            payload = encode(job["args"], jid)
            bounds.check(name, payload)
            yield EncodedJob(jid, queue, None, payload, wait, *made)

    def _release(self, jobs: Sequence[EncodedJob]) -> dict[str, str]:
        """Writes the jobs, now or when the transaction is committed. Returns the jids of those that
        are duplicates, each with that of the job that has its lock."""
        if not transactions.all_wait:
            return self._write(jobs)
        _on_commit(lambda: self._write_later(jobs))
        return {}

    def _write_later(self, jobs: Sequence[EncodedJob]) -> None:
        """Writes jobs that have waited for a commit. Their jids were returned before: so what is a
        duplicate is logged."""
        found = self._write([_enqueued_now(job) for job in jobs])
        for jid, holder in found.items():
            _log.warning("job %s is a duplicate, and was not pushed: job %s waits", jid, holder)

    def _write(self, jobs: Sequence[EncodedJob], route: Route | None = None) -> dict[str, str]:
        """Pushes the jobs to the server at the end of ``route``: that of this client by default.
        Returns the duplicates among them, as ``_release``."""
        channel = (route or self._route).channel()
        duplicates: dict[str, str] = {}
        if jobs and jobs[0].wait:
            answer = channel.push(jobs, Wait(jobs[0].wait, self._wait_limit), duplicates)
            note_replicated((job.jid for job in jobs), bool(answer))
        else:
            channel.push(jobs, None, duplicates)
        if self.pushed_to is not None:
            self.pushed_to([jobs[0].queue] if len(jobs) == 1 else {job.queue for job in jobs})
        return duplicates


def with_defaults(job: Payload) -> Payload:
    """A new dict: ``job``, and defaults for the keys that it leaves out: None for what no two jobs
    share. Raises InvalidJob for a value that no job can have."""
    if type(job) is not dict:
        kind = type(job).__name__  # its value may be a secret, here and below
        raise InvalidJob(f'a job is a dict like {{"class": "Name", "args": []}}, not a {kind}')
    made = {"retry": True, "queue": DEFAULT_QUEUE, **job}
    check_shape(made)
    made = in_places(made)
    _refuse_program(made["class"])
    for key in _UNSHARED:
        made.setdefault(key, None)
    return made


def _refuse_program(name: str) -> None:
    """Raises InvalidJob for a job that only its own program knows."""
    if name.startswith(_PROGRAMS):
        raise InvalidJob(
            f"job {shown(name)} is defined in the program itself, and no worker knows it "
            "by that name; define it in a module, import that here, and name the module in "
            "`forkq start -r`"
        )


def _through_middleware(job: Payload) -> Payload | None:
    """What the client middleware makes of a job, with its defaults; None if it vetoes the push."""
    _unshare(job)
    changed = middleware.client.run(job, lambda: job)
    if changed is None:
        return None
    return with_defaults({**changed} if isinstance(changed, dict) else changed)


def _unshare(job: Payload) -> None:
    """Copies the options of ``job``, which a middleware may change in place: its class has them,
    too."""
    for key, value in job.items():
        if key != "args" and isinstance(value, list | dict):
            job[key] = deepcopy(value)


def _set_time(job: Payload) -> None:
    """Turns ``at`` into epoch seconds, and removes a past one. Raises InvalidJob."""
    at = job.pop("at", None)
    moment = None if at is None else due(at)
    if moment is not None and moment > now():
        job["at"] = moment


def _on_commit(send: Callable[[], None]) -> None:
    """Calls ``send`` when the transaction of this thread is committed. Raises ForkqError."""
    if transactions.on_commit is None:
        raise ForkqError(
            "a push that waits for a commit needs a database that forkq knows: add "
            '"forkq.contrib.django" to INSTALLED_APPS'
        )
    transactions.on_commit(send)


def _enqueued_now(job: EncodedJob) -> EncodedJob:
    """``job`` without the time that it has waited for the commit: that is no time in the queue."""
    from .features.marked import enqueued  # noqa: PLC0415 - a push at once needs none of it

    if job.at is not None:
        return job
    return replace(job, payload=enqueued(job.payload, now(), after=job.expires_in))


def _add_expiry(job: Payload, table: Mapping[str, float]) -> None:
    """``features.expire.queues.add_expiry``, which a client without ``[expire]`` does not need."""
    from .features.expire.queues import add_expiry  # noqa: PLC0415 - most clients have no such table

    add_expiry(job, table)


def _completed(job: Payload, at: float | None) -> Completed:
    """``features.marked.complete``, which a plain job does not need."""
    from .features.marked import complete  # noqa: PLC0415 - a plain push needs none of it

    return complete(job, at, registry.find(job["class"]))


def _is_unique(job: Payload) -> bool:
    """``features.marked.is_unique``, which a plain job does not need."""
    if KEY not in job:
        return False
    from .features.marked import is_unique  # noqa: PLC0415 - a plain push needs none of it

    return is_unique(job)


def _settled(jobs: Sequence[EncodedJob], duplicates: dict[str, str]) -> list[str]:
    """The jids that a push of these jobs returns, some of which are duplicates: "", or the jid of
    the job that has the lock. Raises Duplicate if one of them asks for that."""
    return [
        _jid_of_duplicate(job.unique, duplicates[job.jid])
        if job.unique is not None and job.jid in duplicates
        else job.jid
        for job in jobs
    ]


def _jid_of_duplicate(unique: Unique, holder: str) -> str:
    if unique.on_duplicate == "raise":
        raise Duplicate(
            f"job {shown(unique.name)} was not pushed: job {holder} with the same arguments waits "
            "or runs",
            holder,
        )
    return holder if unique.on_duplicate == "return" else ""


def _jids(jobs: Sequence[EncodedJob]) -> list[str]:
    return [job.jid for job in jobs]


# Whether replicas have the jobs of the latest pushes that waited for them, by jid. A jid is a plain
# string that apps store, compare and pass on: so the answer is kept beside it.
_replicated: Final[dict[str, bool]] = {}
_MOST_REPLICATED: Final = 10_000
_noting = threading.Lock()


def replicated(jid: str | None) -> bool | None:
    """Whether this job was on as many replicas as its push has waited for, within its time.

    Of a push with ``wait``, in the process that made it: ``Pay.set(wait=1).perform_async(7)``. None
    if this process pushed no such job, or has pushed 10,000 others since. False means that a
    failover might lose it now; it is in Redis once, and replicas may have it by now.
    """
    return None if jid is None else _replicated.get(jid)


def note_replicated(jids: Iterable[str], answer: bool) -> None:
    """Keeps the answer for the jobs of one push."""
    with _noting:
        for jid in jids:
            _replicated.pop(jid, None)
            _replicated[jid] = answer
        while len(_replicated) > _MOST_REPLICATED:
            del _replicated[next(iter(_replicated))]


def _after_fork_in_child() -> None:
    global _noting  # noqa: PLW0603 - a thread of the parent may hold the old one
    _noting = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
