"""``forkq retry`` and ``forkq undo``: one job, wherever it is; deleted jobs."""

from __future__ import annotations

from typing import Any

import click

from .. import api
from ..api import JobEntry, Server, Servers
from ..errors import ForkqError, MalformedPayload, ServerUnavailable
from ..units import plural
from ..wire.printable import shown_name
from .job_facts import why_nowhere
from .options import configuration, finds_redis, searched
from .output import echo
from .progress import ActionProgress


@click.command()
@click.argument("jids", nargs=-1, required=True, metavar="JID...")
@click.option("--fresh", is_flag=True, help="Forget its failures: it has all retries again.")
@finds_redis
def retry(jids: tuple[str, ...], fresh: bool, **flags: Any) -> int:
    """Run jobs now that are dead, wait for a retry, or are scheduled. Exit code 1 if one is none of
    these."""
    where = searched(configuration(**flags))
    return max([_retried(where, jid, fresh=fresh) for jid in jids])


def _retried(where: Server | Servers, jid: str, *, fresh: bool) -> int:
    entry, what = api.entry(jid, where), shown_name(jid)
    if entry is None:
        return _not_retried(f"{what} is nowhere: {why_nowhere(jid)}")
    if entry.location == "running":
        return _not_retried(f"{what} runs now, in {shown_name(entry.owner)}")
    if entry.location == "queued":
        return _not_retried(f"{what} waits in the queue {shown_name(entry.queue)} already")
    return _retry(entry, what, fresh=fresh)


def _retry(entry: JobEntry, what: str, *, fresh: bool) -> int:
    try:
        if not entry.retry(fresh=fresh):
            return _not_retried(f"{what} has just left: look again with `forkq find {what}`")
    except MalformedPayload as error:
        return _not_retried(f"{what} cannot run: {shown_name(error)}")
    echo(f"{what} ({shown_name(entry.name)}) was {entry.location}, is in {shown_name(entry.queue)}")
    return 0


def _not_retried(reason: str) -> int:
    echo(reason, err=True)
    return 1


@click.command()
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
@finds_redis
def undo(tokens: tuple[str, ...], **flags: Any) -> int:
    """Put deleted jobs back, within ten minutes. A deletion has printed the token."""
    where = searched(configuration(**flags))
    return max([_undone(where, token) for token in tokens])


def _undone(where: Server | Servers, token: str) -> int:
    try:
        with ActionProgress("putting back") as progress:
            outcome = api.undo(token, progress=progress, where=where)
    except ServerUnavailable:
        raise
    except ForkqError as error:
        echo(f"forkq: {error}", err=True)
        return 1
    echo(f"{plural(outcome.done, 'job')} put back")
    return 0
