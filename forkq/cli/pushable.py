"""What ``forkq push`` refuses because nothing could run it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .. import api, registry
from ..config.config import Config
from ..errors import ForkqError, InvalidJob, NotPermitted, nearest
from ..limits.patterns import matches_any
from ..wire.payload import DEFAULT_QUEUE, Payload
from ..wire.printable import shown_name
from .output import echo

_FORCE: Final = "--force pushes it all the same"
_MOST: Final = 10  # names of queues


def check_pushable(
    servers: api.Servers,
    job: Payload,
    spec: registry.JobSpec | None,
    config: Config,
    *,
    imported: bool,
) -> None:
    """Raises InvalidJob or ForkqError if no known process can run ``job``. ``spec`` is its
    definition in the app, if that was ``imported``."""
    queue = str(job.get("queue", DEFAULT_QUEUE))
    is_ours = config.source is not None and matches_any(queue, config.queue_names)
    if spec is not None:
        _check_count(job, spec)
    elif imported and (is_ours or "queue" not in job):
        raise InvalidJob(_unknown(str(job["class"]), config))
    if not is_ours:
        _check_queue(servers, queue, config)


def _check_count(job: Payload, spec: registry.JobSpec) -> None:
    fewest, most = spec.arity
    count = len(job["args"])
    if not fewest <= count <= most:
        raise InvalidJob(f"job {spec.name!r} takes {spec.takes}, not {count}; {_FORCE}")


def _unknown(name: str, config: Config) -> str:
    names = registry.names()
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else "`forkq config check` lists its jobs; "
    apps = ", ".join(config.app)
    return f"the app {apps} has no job {shown_name(name)!r}: {hint}{_FORCE} (a job for Sidekiq)"


def _check_queue(servers: api.Servers, queue: str, config: Config) -> None:
    try:
        processes = api.processes(servers.of_queue(queue))
        live = {name for process in processes for name in process.queues}
    except NotPermitted as error:
        echo(f"forkq: whether {queue!r} is served is not known: {error}", err=True)
        return
    if not matches_any(queue, live):
        raise ForkqError(_unserved(queue, config, live))


def _unserved(queue: str, config: Config, live: set[str]) -> str:
    declared = config.queue_names if config.source else []
    near = nearest(queue, sorted({*declared, *live}))
    place = f"no capsule in {config.source} ({_some(declared)}) and " if config.source else ""
    hint = f"did you mean {shown_name(near)!r}? " if near else ""
    return (
        f"{place}no process that runs now ({_some(live)}) works on the queue "
        f"{shown_name(queue)!r}, so nothing was pushed; {hint}{_FORCE}"
    )


def _some(queues: Collection[str]) -> str:
    """The first of the queues that the capsules, or the processes, serve."""
    if not queues:
        return "there is none"
    more = len(queues) - _MOST
    names = ", ".join(map(shown_name, sorted(queues)[:_MOST]))
    return f"they serve {names}{f' and {more:,} more' if more > 0 else ''}"
