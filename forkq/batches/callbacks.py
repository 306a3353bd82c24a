"""The callbacks of a batch, as they are checked and encoded when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..default_client import default
from ..errors import ForkqError, InvalidJob, shown
from ..features.batch.parts import BATCH, IGNORABLE, LIVES, Event, callback_of
from ..features.notes import due_text
from ..wire.defaults import with_defaults
from ..wire.marks import KEY, needs_in, with_needs
from ..wire.payload import DEFAULT_QUEUE, Payload
from ..wire.prepared import PreparedJob
from ..wire.times import now

if TYPE_CHECKING:
    from ..client import Client
    from ..servers import Server
    from ..store.route import EncodedJob

# The default of a callback. None is none: a job that is called, instead of prepared, returns that.
NOT_GIVEN: Final[Any] = object()
# What switches these options off.
_OFF: Final[Mapping[str, object]] = {
    "expires_in": 0,
    "unique_for": 0,
    "debounce": 0,
    "throttle": None,
    "once": False,
}


def shard_for(home: Server, queue: str) -> str:
    """The shard ``home`` of a batch, if jobs of that queue may be on another one; else ""."""
    return "" if not home.name or home.parts_of(queue) == (home.name,) else home.name


def checked(event: str, given: object) -> PreparedJob | None:
    """The callback of an event. Raises InvalidJob for what can be none."""
    if given is NOT_GIVEN:
        return None
    if given is None:
        raise InvalidJob(
            f"on_{event} is None, as from a job that is called, which runs at once: write "
            f"on_{event}=report.s(7), or leave it out"
        )
    if not isinstance(given, PreparedJob):
        raise InvalidJob(f"on_{event} takes a job with its arguments, as in on_{event}=report.s(7)")
    refused = ("expires_in", "unique_for", "debounce", "throttle")
    check_options(f"on_{event}", "a callback of a batch", given, refused)
    return given


def check_options(place: str, what: str, given: PreparedJob, refused: Iterable[str]) -> None:
    """Raises InvalidJob for a job that a script pushes when its time has come, if it has one of the
    ``refused`` options, or a time of its own."""
    name, needs = shown(given.payload["class"]), needs_in(given.payload.get(KEY))
    if "at" in given.payload:
        raise InvalidJob(
            f"{place}: job {name} has `at`, and {what} has no time of its own: it is pushed when "
            "what it waits for has ended; leave `at` out"
        )
    if odd := [option for option in refused if needs.get(option)]:
        raise InvalidJob(
            f"{place}: job {name} has `{odd[0]}`, which {what} cannot have: it is pushed once; "
            f"write `.set({odd[0]}={_OFF[odd[0]]})` before `.s(...)`"
        )


def checked_name(name: object) -> str:
    """The name of a batch. Raises ForkqError for what is none."""
    if type(name) is not str:
        raise ForkqError(f'a batch has a name, and not {shown(name)}: forkq.Batch("import")')
    return name


def checked_ways(ignore: object) -> tuple[str, ...]:
    """The ways that are ignored. Raises ForkqError for one that cannot be."""
    if isinstance(ignore, str) or not isinstance(ignore, Iterable):
        raise ForkqError(f"ignore takes a list of ways, as in ignore=['expired']: {shown(ignore)}")
    given = tuple(ignore)
    if odd := [way for way in given if way not in IGNORABLE]:
        raise ForkqError(f"ignore: {shown(odd[0])} is none of {', '.join(IGNORABLE)}")
    return given


def encoded(client: Client, prepared: PreparedJob, need: dict[str, Any]) -> EncodedJob | None:
    """The callback as Redis will push it by itself, with this ``need``; None if a middleware
    vetoed it. It is made as one that is due later: nothing says yet when it comes to its queue."""
    return client._encoded(with_defaults(_as_callback(prepared.payload, need)))


def await_results(callbacks: Iterable[EncodedJob]) -> None:
    """Has the results of these callbacks known from now on as such that are to come: for as long as
    a batch lives in which nothing happens."""
    for job in callbacks:
        if job.needs is not None and job.needs.result_ttl:
            server = default().servers.of_queue(job.queue, job.jid)
            text, _ = job.needs.placeholder(job.queue)
            server.ask(("SET", server.keys.result(job.jid), text, "EX", LIVES, "NX"))


def _fields_of_callback(letter: str, job: EncodedJob, client: Client | None) -> list[Any]:
    """The fields of a batch about its callback with this ``letter``. If its queue is on another
    shard than the batch, ``client`` says on which one, and a note will push it there."""
    if client is None:
        return [f"on_{letter}", job.payload]
    to = client.servers.of_queue(job.queue, job.jid).name
    return [f"on_{letter}", due_text(job.payload, job.jid), f"to_{letter}", to, "away", 1]


def made_fields(
    client: Client,
    place: tuple[str, tuple[str, ...]],
    name: str,
    callbacks: Mapping[Event, PreparedJob | None],
    ignore: Sequence[str],
    home_for: Callable[[str], str],
) -> tuple[list[Any], list[EncodedJob]]:
    """The fields of the hash of a new batch, each with its value; and its callbacks. ``place``: its
    id, and the batches above it. ``home_for`` says of the queue of a callback which shard the batch
    has, if that may be another one; else ""."""
    (bid, above), fields = place, list[Any](("name", name))
    calls = ""
    made: list[EncodedJob] = []
    for event, prepared in callbacks.items():
        if prepared is None:
            continue
        home = home_for(prepared.payload.get("queue", DEFAULT_QUEUE))
        found = encoded(client, prepared, callback_of(bid, event, above, home))
        if found is not None:  # else a middleware has vetoed it
            calls += event[0]
            made.append(found)
            fields += _fields_of_callback(event[0], found, client if home else None)
    fields += ("calls", calls, "ignore", "".join(f",{way}," for way in ignore))
    return fields if not above else [*fields, "parent", above[0]], made


def _as_callback(payload: Payload, need: dict[str, Any]) -> Payload:
    """The job of a callback: a script gives it to the schedule when its time has come."""
    marks = with_needs(payload.get(KEY), {"expires_in": 0, BATCH: need})
    return {**payload, KEY: marks, "at": now() + 60}
