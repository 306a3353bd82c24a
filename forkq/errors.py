"""Every error that forkq raises on purpose, and the exit code the command line gives it.

The text of an error is the whole message for the person who meets it: it names the thing, the
place and the remedy, so that nobody needs a traceback for a mistake of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LONGEST_SHOWN: Final = 100


class ForkqError(Exception):
    """The root of forkq's errors; ``exit_code`` is what the command line exits with."""

    exit_code = 1


class ConfigError(ForkqError):
    """A file, flag or variable says something that forkq cannot use."""

    exit_code = 2


class InvalidRule(ConfigError, ValueError):
    """A limit, a rate or a name of a queue that no rule can have, wherever it was given."""


class CannotBoot(ForkqError):
    """The children could not start: a broken app, or a server that forkq cannot work with."""

    exit_code = 3


class NotRunning(ForkqError):
    """A command looked for a running master and found none."""

    exit_code = 4


class AlreadyRunning(ForkqError):
    """A second ``start`` found a live master behind its pidfile."""

    exit_code = 5


class ServerUnavailable(ForkqError):
    """Redis cannot be reached, refuses us, or is too old.

    Raised by a push, it says what became of the jobs: those with the jids ``pushed`` are surely in
    Redis, those with ``unknown`` may be, all others surely are not.
    """

    exit_code = 6

    pushed: Sequence[str] = ()
    unknown: Sequence[str] = ()


class ServerRefused(ServerUnavailable):
    """Redis answered, and refused the command. What it refused was not done."""


class ServerFull(ServerRefused):
    """Redis has reached its ``maxmemory``."""


class ServerReadOnly(ServerRefused):
    """Redis is a replica, which takes no writes. A failover may end that, so the code is one with
    which a service manager tries again."""

    exit_code = 7


class NotPermitted(ServerRefused):
    """The user in the URL has no right (ACL) to a command or a key. See docs/redis.md."""


class WrongPassword(ServerRefused):
    """Redis wants a password, or another one or another user than the URL gives."""


class WrongType(ServerRefused):
    """Under a key of forkq's stands a value of another type."""


class TooFewReplicas(ServerRefused):
    """Fewer replicas are connected than ``min-replicas-to-write`` asks for."""


class CannotSave(ServerRefused):
    """Redis could not write its snapshot, and so takes no writes (MISCONF)."""


class InvalidJob(ForkqError, ValueError):
    """A job that could never run: refused when it is pushed, not 25 retries later."""


class InvalidSchedule(ForkqError, ValueError):
    """A periodic job that could never run, or not as it was meant: a cron expression, a time zone
    or a policy that cannot be read, or a name that is taken."""

    exit_code = 2


class MalformedPayload(ForkqError):
    """Bytes in Redis that are no job: not JSON, not an object, or without a usable class."""


class UnknownJob(ForkqError):
    """A payload names a job that this app has not registered. It is retried: a deploy may be
    rolling, and the class may arrive with the next child."""


class Crashed(ForkqError):
    """Stands in a buried payload as the reason when its children died under it too often."""


class Unsettled(ForkqError):
    """Stands in a payload as the reason when forkq itself failed on the way of the job, or an
    exception of the app's struck there."""


class Shutdown(BaseException):
    """Raised inside ``perform`` at the stop's deadline, so that ``finally`` blocks still run.

    It derives from BaseException: ``except Exception`` in a job must not swallow it. A job that
    ends with it is requeued, never counted as failed.
    """


def shown(value: object) -> str:
    """``value`` as the text of an error shows it: cut, and without a traceback of its own."""
    try:
        text = repr(value)
    except ValueError:  # str() of an integer with more digits than Python writes
        return "a number of too many digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
