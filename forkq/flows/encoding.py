"""The steps of a flow, encoded: what flow_push.lua is told of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..batches.callbacks import shard_for
from ..errors import InvalidJob, shown
from ..features.batch.parts import FLOW, Place
from ..features.flow.parts import OnFailure, marker, need_of, unstarted
from ..features.notes import due_text
from ..wire.defaults import with_defaults
from ..wire.marks import KEY, with_needs
from ..wire.payload import DEFAULT_QUEUE, Payload
from ..wire.times import now
from .graph import FlowStep, Graph, count_of_results, with_results

if TYPE_CHECKING:
    from ..client import Client
    from ..servers import Server
    from ..store.route import EncodedJob

# So many steps, and about so many bytes, are sent in one call of a script.
_AT_ONCE: Final = 500
_BYTES: Final = 512 << 10
# The letter of each edge, as flow.lua has it.
LETTERS: Final[Mapping[OnFailure, str]] = {"wait": "w", "cancel": "c", "run": "r"}


class EncodedStep(NamedTuple):
    """A step as it is sent: ``arguments`` of the script. ``is_away``: another shard may have it
    than that of its flow."""

    jid: str
    queue: str
    arguments: tuple[Any, ...]
    size: int
    is_away: bool


class Home(NamedTuple):
    """Where the steps belong: to the flow ``bid`` on this ``server``, and so to the batches
    ``above`` it."""

    bid: str
    above: tuple[str, ...]
    server: Server

    def place(self, name: str, index: int | None, queue: str) -> Place:
        """Where the step of this name belongs, whose job goes to that queue."""
        at = shard_for(self.server, queue)
        return Place(self.bid, self.above, index, at=at, step=name)


def encoded(client: Client, graph: Graph, home: Home) -> dict[str, EncodedStep]:
    """All steps of a flow that is to be made, by their names. Raises InvalidJob for a graph that
    is none, and for a step that could never run."""
    index = {name: number for number, name in enumerate(graph.steps)}
    behind, found = graph.behind(), {}
    for name in graph.ordered():
        step = graph.steps[name]
        job = encoded_job(client, step, home, index[name])
        edges = ((index[one], graph.steps[one].after[name]) for one in behind[name])
        nexts = "".join(f"{number}{LETTERS[how]}" for number, how in edges)
        kept, to = _kept(client, job, home)
        arguments = (index[name], name, kept, to, len(step.after) or 1, nexts)
        found[name] = _as_sent(job, home, arguments)
    return found


def grafted(client: Client, graph: Graph, home: Home) -> list[EncodedStep]:
    """The steps that a step adds to its flow, each behind those that it comes after. Raises
    InvalidJob."""
    found = []
    for name in graph.ordered(is_part=True):
        step = graph.steps[name]
        job = encoded_job(client, step, home, None)
        edges = [text for one, how in step.after.items() for text in (one, LETTERS[how])]
        arguments = (name, *_kept(client, job, home), len(step.after), *edges)
        found.append(_as_sent(job, home, arguments))
    return found


def _kept(client: Client, job: EncodedJob, home: Home) -> tuple[bytes, str]:
    """What the flow keeps of a step until it starts, and to which other shard that goes then."""
    to = client.servers.of_queue(job.queue, job.jid).name if home.server.name else ""
    to = "" if to == home.server.name else to
    text = due_text(job.payload, job.jid) if to else job.payload
    return unstarted(text, job.needs.expires_in if job.needs else 0.0), to


def _as_sent(job: EncodedJob, home: Home, arguments: tuple[Any, ...]) -> EncodedStep:
    size = sum(len(each) for each in arguments if isinstance(each, str | bytes))
    return EncodedStep(job.jid, job.queue, arguments, size, bool(shard_for(home.server, job.queue)))


def names_only(steps: Sequence[EncodedStep]) -> list[tuple[Any, ...]]:
    """What flow_graft.lua is told of steps that are not added yet: the names of all, and behind the
    first one those that they come after, and that are none of them."""
    names = {each.arguments[0] for each in steps}
    before = dict.fromkeys(name for each in steps for name in each.arguments[4::2])
    others = [name for name in before if name not in names]
    edges = [text for name in others for text in (name, LETTERS["wait"])]
    first, *rest = ((each.arguments[0], "", "") for each in steps)
    return [(*first, len(others), *edges), *((*each, 0) for each in rest)]


def firsts(graph: Graph) -> str:
    """The steps that nothing is before, as flow.lua has them."""
    steps = enumerate(graph.steps.values())
    return "".join(f"{index}r" for index, step in steps if not step.after)


def encoded_job(client: Client, step: FlowStep, home: Home, index: int | None) -> EncodedJob:
    """The job of a step. It is made as one that is due later: nothing says yet when it comes to its
    queue. Raises InvalidJob if it cannot be pushed, or if a middleware has vetoed it."""
    payload = step.job.payload
    taken = count_of_results(payload["args"])
    place = home.place(step.name, index, payload.get("queue", DEFAULT_QUEUE))
    need = need_of(place, taken)
    args = with_results(payload["args"], lambda found: marker(home.bid, found.names or ()))
    job = {**payload, "args": args, KEY: with_needs(payload.get(KEY), {FLOW: need})}
    made = _encoded(client, step, {**job, "at": now() + 60})
    if made.needs is not None and made.needs.expires_at is not None:
        made = _encoded(client, step, job)  # the script that starts it stamps the moment
    if shard_for(home.server, made.queue) != place.at:
        raise InvalidJob(
            f"step {shown(step.name)}: a middleware has moved it to the queue {shown(made.queue)} "
            "on another shard: write `.set(queue=...)` where the step is added"
        )
    return made


def _encoded(client: Client, step: FlowStep, job: Payload) -> EncodedJob:
    try:
        made = client._encoded(with_defaults(job))
    except InvalidJob as error:
        raise InvalidJob(f"step {shown(step.name)}: {error}") from None
    if made is None:
        raise InvalidJob(
            f"step {shown(step.name)}: a middleware has vetoed its push, and a flow is pushed as a "
            "whole or not at all"
        )
    return made


def pages(steps: Sequence[EncodedStep]) -> Iterator[list[EncodedStep]]:
    """The steps, as many at a time as are sent in one call."""
    page: list[EncodedStep] = []
    size = 0
    for each in steps:
        if page and (len(page) == _AT_ONCE or size + each.size > _BYTES):
            yield page
            page, size = [], 0
        page.append(each)
        size += each.size
    yield page
