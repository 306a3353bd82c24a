"""The command line of this process, without passwords: every user of the machine can read it."""

from __future__ import annotations

import sys

from setproctitle import setproctitle

from ..wire.redis_url import redacted_url


def hide_passwords() -> None:
    """Rewrites the title of this process, if an argument has a password in it."""
    shown = [_redacted(argument) for argument in sys.argv[1:]]
    if shown != sys.argv[1:]:
        setproctitle(" ".join(("forkq", *shown)))


def _redacted(argument: str) -> str:
    """The argument ``--redis=URL``, or a URL alone, without its password."""
    flag, equals, url = argument.partition("=")
    if flag == "--redis" and equals:
        return f"{flag}={redacted_url(url)}"
    return redacted_url(argument) if "://" in argument else argument
