"""Every error that forkq raises on purpose, and its exit code on the command line.

The text of an error names the thing, the place and the remedy: users need no traceback to
correct their own mistakes.
"""

from __future__ import annotations

import difflib
import errno
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

_LONGEST_SHOWN: Final = 100
_LONGEST_SNOOZE: Final = 1e9  # seconds; a larger number is a time stamp by mistake
_OUTCOME: Final = "forkq_outcome"  # attribute of an error of another library
# What a full disk, a full table or a busy file system answers. The same call may succeed later.
_PASSING: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOLCK,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ESTALE,
    }
)


_CHECKOUT: Final = Path(__file__).parents[1]


def install(extra: str) -> str:
    """The command that installs one of forkq's extras, as ``web``: in a checkout its own, so that
    the package index's forkq does not take its place."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"{sys.executable} -m pip install -e '{_CHECKOUT}[{extra}]'"
    return f"pip install 'forkq[{extra}]'"


class _Configuration:
    """``place`` is where people write the configuration of this process, for the texts of errors:
    an integration names its own, such as settings.FORKQ."""

    place = "forkq.toml"


configuration: Final = _Configuration()


class ForkqError(Exception):
    """The root of forkq's errors; ``exit_code`` is what the command line exits with."""

    exit_code = 1


class ConfigError(ForkqError):
    """A file, flag or variable has a value that forkq cannot use."""

    exit_code = 2


class InvalidRule(ConfigError, ValueError):
    """A limit, a rate or a queue name that no rule can have, in a file, a command or a call."""


class CannotBoot(ForkqError):
    """The children could not start: a broken app, or a server that forkq cannot work with."""

    exit_code = 3


class CannotStartYet(ForkqError):
    """Time may mend what keeps ``start`` from going on: a full disk, too many open files, a service
    that the app needs. A service manager should start forkq again."""

    exit_code = 8


class NotRunning(ForkqError):
    """A command found no running master."""

    exit_code = 4


class AlreadyRunning(ForkqError):
    """``start`` found a live master behind its pidfile."""

    exit_code = 5


class ServerUnavailable(ForkqError):
    """Redis cannot be reached, refuses us, or is too old.

    Raised by a push, it has the jids of the jobs: those in ``pushed`` are in Redis, those in
    ``unknown`` may be, all others are not. Raised by an action on many jobs, ``outcome`` is the
    ``forkq.api.Outcome`` of the batches before; the one that failed may have been done, too.
    """

    exit_code = 6

    pushed: Sequence[str] = ()
    unknown: Sequence[str] = ()
    outcome: Any = None


class ServerRefused(ServerUnavailable):
    """Redis refused the command and did nothing of it."""


class ServerFull(ServerRefused):
    """Redis has reached its ``maxmemory``."""


class ServerReadOnly(ServerRefused):
    """Redis is a replica, which takes no writes. A failover may end that, so a service manager
    should start forkq again after this exit code."""

    exit_code = 7


class BatchFinished(ServerRefused):
    """A push into a batch that takes no members any more: its block has ended, it was cancelled, or
    the member that pushes has ended. None of the jobs of that call of Redis is pushed."""


class NotPermitted(ServerRefused):
    """The user in the URL has no right (ACL) to a command or a key. See docs/redis.md."""


class WrongPassword(ServerRefused):
    """Redis refused the login: there is no password, or a wrong one, or a wrong user. Or the
    password cannot be read from ``password_file`` or ``password_command``."""


class WrongType(ServerRefused):
    """A key of forkq holds a value of another type."""


class TooFewReplicas(ServerRefused):
    """Fewer replicas are connected than ``min-replicas-to-write`` asks for."""


class CannotSave(ServerRefused):
    """Redis could not write its snapshot, and so takes no writes (MISCONF)."""


class InvalidJob(ForkqError, ValueError):
    """A job that could never run. The push refuses it, not the last of many retries."""


class Duplicate(ForkqError):
    """A unique job was not pushed: the job ``jid`` has its lock. Of a bulk push ``jid`` belongs to
    the first duplicate; the other jobs are in Redis, and ``jids`` has what the push would have
    returned: the jid of each of them, and "" in the place of each duplicate."""

    def __init__(self, text: str, jid: str = "", jids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.jid = jid
        self.jids = jids


class ResultUnknown(ForkqError):
    """There is no result of that job: its class keeps none (``result_ttl``), it was never pushed,
    or its result has expired."""


class ResultNotKept(ForkqError):
    """The job is done, and what it has returned could not be kept: JSON does not have such a
    value. The job is not run again for that."""


class ResultTooLarge(ResultNotKept):
    """The job is done, and what it has returned is larger than 256 KiB of JSON."""


class JobFailed(ForkqError):
    """The job whose result was asked for has ended without one. ``outcome`` says how: "dead",
    "dropped", "discarded", "expired", "cancelled", "deleted" or "replaced". ``error_class`` and
    ``error_message`` are those of its last error; "" if it had none."""

    def __init__(
        self,
        text: str,
        jid: str = "",
        outcome: str = "dead",
        error_class: str = "",
        error_message: str = "",
    ) -> None:
        super().__init__(text)
        self.jid = jid
        self.outcome = outcome
        self.error_class = error_class
        self.error_message = error_message


class JobCancelled(JobFailed):
    """The job whose result was asked for was cancelled."""


class JobExpired(JobFailed):
    """The job whose result was asked for was not run in time (``expires_in``)."""


class BlockingPushWarning(RuntimeWarning):
    """A push that waits for Redis was called by an event loop, which does nothing else meanwhile:
    `aperform_async` is awaited instead. Python says it once for each line of code."""


class PushOutcome(NamedTuple):
    """What a push that has ended early knows of its jobs: those in ``pushed`` are in Redis, those
    in ``unknown`` may be, all others are not."""

    pushed: Sequence[str] = ()
    unknown: Sequence[str] = ()


class MissingAttribute(ForkqError, AttributeError):
    """A job class without ``perform`` cannot be pushed, and an instance that no child made has no
    ``self.job``. An AttributeError, so that ``hasattr``, ``help`` and ``inspect`` work."""


class InvalidSchedule(ForkqError, ValueError):
    """A periodic job that could never run, or not as intended: a wrong cron expression, time zone
    or policy, or a name that another one has."""

    exit_code = 2


class MalformedPayload(ForkqError):
    """Bytes in Redis that are no job: no JSON, no object, or without a class that is a string."""


class UnknownJob(ForkqError):
    """A payload names a job that this app has not registered. It is retried: during a rolling
    deploy another child may have the class already."""


class UnknownVersion(ForkqError):
    """The reason in the payload of a job that was buried because it needs a newer forkq than all
    that fetched it for a day."""


class Crashed(ForkqError):
    """The reason in the payload of a job that was buried because its children died too often."""


class Unsettled(ForkqError):
    """The reason in the payload of a job that failed outside of ``perform``: by an error of forkq,
    or by an exception of the app that struck there."""


class SnoozedTooLong(ForkqError):
    """The failure of a job that has done nothing but snooze for a day."""


class JobDecision(BaseException):
    """What a job says of itself, raised inside it: Snooze, Discard or Dead.

    It derives from BaseException: ``except Exception`` in a job must not swallow it. It ends the
    run, like any exception: ``finally`` blocks run, and a database transaction around it would be
    rolled back. ``refusal`` says why none may be raised just now, "" if one may be: an integration
    that knows of an open transaction sets it.
    """

    outcome: Literal["snoozed", "discarded", "dead"]
    refusal: Callable[[], str] = staticmethod(lambda: "")

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        if why := self.refusal():
            raise ForkqError(
                f"forkq.{type(self).__name__} cannot be raised here: {why}; raise it behind the "
                "`atomic` block"
            )


class Snooze(JobDecision):
    """The job runs again ``after`` seconds, or a timedelta: it has not failed, and this costs no
    retry. What it does nothing but for a whole day is a failure."""

    outcome = "snoozed"

    def __init__(self, after: float | timedelta | None = None) -> None:
        if after is None:  # also for `raise forkq.Snooze`
            raise ValueError("forkq.Snooze needs a time: write raise forkq.Snooze(30), in seconds")
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_SNOOZE:
            raise ValueError(
                f"forkq.Snooze({shown(after)}): pass a number of seconds above 0 and up to 1e9, or "
                "a timedelta"
            )
        super().__init__(f"{seconds:g} s")
        self.seconds = float(seconds)


class Discard(JobDecision):
    """The job ends here, and is kept nowhere: it has not failed, and no handler is called."""

    outcome = "discarded"


class Dead(JobDecision):
    """The job is dead: it has failed with this reason, and no retry can help."""

    outcome = "dead"


class Asleep(JobDecision):
    """Raised by ``forkq.sleep`` and ``forkq.wait_for``: the job gives its worker back, and runs
    again ``until`` then (epoch seconds), or once its signal has come. It has not failed, and this
    costs no retry. ``pause``: what it remembers of that."""

    outcome = "snoozed"

    def __init__(self, pause: object, until: float) -> None:
        super().__init__("asleep")
        self.pause = pause
        self.until = until


class IterationStopped(BaseException):
    """Raised by forkq in an iterable job between two items: the job goes on later. ``reached`` is
    how far it has come, None if that is not known and nothing was done; ``at_tail``: other jobs of
    its queue come first."""

    def __init__(self, reached: object, *, at_tail: bool = False) -> None:
        super().__init__("stopped between two items")
        self.reached = reached
        self.at_tail = at_tail


class Shutdown(BaseException):
    """Raised inside ``perform`` at the stop's deadline, so that ``finally`` blocks still run.

    It derives from BaseException: ``except Exception`` in a job must not swallow it. A job that
    ends with it is requeued, never counted as failed.
    """


class TimeLimit(BaseException):
    """Raised inside a job that has run for its ``timeout``; the job has failed, and its own rules
    decide what becomes of it.

    It derives from BaseException: ``except Exception`` in a loop must not swallow it. Catch it by
    its name, or clean up in ``finally``.
    """

    def __str__(self) -> str:
        return super().__str__() or "the job has run for its timeout"


class Cancelled(BaseException):
    """Raised inside a job that was cancelled (``forkq.cancel``): it ends for good.

    It derives from BaseException: ``except Exception`` in a loop must not swallow it. Catch it by
    its name, or clean up in ``finally``. A job that catches it and returns is done.
    """

    outcome: Final = "cancelled"

    def __str__(self) -> str:
        return super().__str__() or "the job was cancelled"


class LeaseLost(BaseException):
    """An ``async def`` job was cancelled, since another host has it by now: nothing that it does
    counts any more. Middleware sees this; the job itself sees a CancelledError.

    It derives from BaseException: ``except Exception`` in a middleware must not swallow it.
    """


def decision_in(error: BaseException) -> JobDecision | None:
    """What the job has decided if it has raised ``error``: that itself, or a group (task
    groups make some) that has nothing but decisions. The one that ends more counts."""
    found: list[Any] = [error]
    decisions: list[JobDecision] = []
    for each in found:
        if isinstance(each, JobDecision):
            decisions.append(each)
        elif _is_group(each):
            found += each.exceptions
        else:
            return None
    kinds = (Dead, Discard, Snooze, Asleep)  # an app may derive classes of its own
    return next(each for kind in kinds for each in decisions if isinstance(each, kind))


def _is_group(error: Any) -> bool:
    """Whether it is a group of exceptions: Python's, or its backport to Python 3.10. Errors of
    other libraries have an attribute ``exceptions``, too."""
    return any(one.__name__ == "BaseExceptionGroup" for one in type(error).__mro__)


def cancelled_in(error: BaseException) -> Cancelled | None:
    """The Cancelled that is ``error``, or because of which that was raised; None if there is
    none."""
    return next((link for link in led_to(error) if isinstance(link, Cancelled)), None)


def push_outcome(error: BaseException) -> PushOutcome | None:
    """What became of the jobs of the push that ``error`` has ended: a ServerUnavailable, a
    CancelledError of asyncio, or the TimeoutError that a time-out has made of that. None if it has
    ended no push."""
    for link in led_to(error):
        if isinstance(link, ServerUnavailable):
            return PushOutcome(link.pushed, link.unknown)
        found = getattr(link, _OUTCOME, None)
        if isinstance(found, PushOutcome):
            return found
    return None


def note_outcome(error: BaseException, outcome: PushOutcome, text: str = "") -> None:
    """Has ``error``, which is not of forkq, carry the outcome of the push that it has ended."""
    setattr(error, _OUTCOME, outcome)
    if text and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"forkq: {text}")


def note_nothing_pushed(error: BaseException) -> None:
    """Has an error that has ended a push say that no job was sent, unless it says what was."""
    if push_outcome(error) is None:
        note_outcome(error, PushOutcome(), "nothing was pushed")


def caused_by_shutdown(error: BaseException) -> bool:
    """Whether ``error`` is the shutdown, or was raised because of it."""
    return any(isinstance(link, Shutdown) for link in led_to(error))


def led_to(error: BaseException) -> Iterator[BaseException]:
    """``error`` and, after it, what it was raised from or while handling, and what is in a group,
    each once."""
    seen: set[int] = set()
    pending: list[Any] = [error]
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        yield link
        seen.add(id(link))
        pending += [link.__context__, link.__cause__]
        if _is_group(link):
            pending += link.exceptions


def file_error(text: str, error: OSError) -> ForkqError:
    """The error of forkq to raise for ``error``, an OSError: CannotStartYet if the system lacks
    something just now, else ConfigError, because the path is wrong."""
    return (CannotStartYet if error.errno in _PASSING else ConfigError)(text)


def shown(value: object) -> str:
    """``value`` for the text of an error: cut, and never itself an exception."""
    try:
        text = repr(value)
    except ValueError:  # str() of an integer with more digits than Python writes
        return "a number of too many digits"
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def a_type(kind: type) -> str:
    """The name of ``kind`` with its article: "an int", "a UUID"."""
    return f"{'an' if kind.__name__[0] in 'aeiouAEIO' else 'a'} {kind.__name__}"


def no_such_shard(name: str, names: Sequence[str]) -> ConfigError:
    """The error for a shard that is none of ``names``, those of the configuration."""
    if not names:
        return ConfigError(f'there is no shard "{name}": the configuration has no [[redis.shards]]')
    known = ", ".join(names)
    return ConfigError(f'there is no shard "{name}" in [[redis.shards]]; there are {known}')


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The word among ``words`` that was probably meant; a word with the same letters comes
    first."""
    found = difflib.get_close_matches(word.lower(), list(words), 3, cutoff)
    return min(found, key=lambda one: sorted(one) != sorted(word.lower()), default=None)


def callers_level() -> int:
    """The ``stacklevel`` with which our caller's warning names the first line outside of forkq."""
    level, frame = 1, sys._getframe(1).f_back
    # Code of exec() may have no name. No line is outside where C calls forkq, as at the exit.
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("forkq."):
        level, frame = level + 1, frame.f_back
    return level + 1
