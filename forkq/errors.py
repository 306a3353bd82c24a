"""Every error that forkq raises on purpose, and the exit code the command line gives it.

The text of an error is the whole message for the person who meets it: it names the thing, the
place and the remedy, so that nobody needs a traceback for a mistake of their own.
"""

from __future__ import annotations


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
    """Redis cannot be reached, refuses us, or is too old."""

    exit_code = 6


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
