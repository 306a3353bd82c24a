"""The client of a process whose configuration has shards. Any process.

``default_client`` makes it in place of a Client, and imports this module only then.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import registry
from .client import Client
from .config.shards import Shard, parts_of
from .config.spread import parts_by_queue
from .errors import (
    InvalidJob,
    PushOutcome,
    ServerRefused,
    ServerUnavailable,
    note_outcome,
    push_outcome,
    shown,
)
from .features.batch.parts import INDEX, PushedInto
from .servers import Servers
from .store.route import EncodedJob, Route
from .store.scripts import BATCH_CHANGE
from .values import replace
from .wire.payload import DEFAULT_QUEUE
from .wire.spread import in_turn, part_of

if TYPE_CHECKING:
    from .features.marked import PushNeeds
    from .store.connection import RedisConnection

# Seconds for which pushes leave out a shard that is down, if there is another part: at first, and
# at most. Each try may take the whole time-out of a push.
_FIRST_REST: Final = 1.0
_LONGEST_REST: Final = 30.0
_IS_DOWN: Final = "the shard %s is down, and its jobs of %s go to the other parts: %s"
_log: Final = logging.getLogger("forkq")


def part_key(job: EncodedJob) -> str:
    """What chooses the part of a job of a spread queue: its jid, so that jobs are spread evenly.

    This is the one place that decides it. Jobs that must meet in one part need the same key: those
    that exclude each other would give what they have in common.
    """
    return job.lock or job.window or job.jid


class ShardedClient(Client):
    """Pushes each job to the shard of its queue. ``connection`` leads to ``shard``, ``servers`` are
    all shards."""

    def __init__(self, shards: Sequence[Shard], shard: str, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.shards = tuple(shards)
        self._shard = shard
        self._spread = parts_by_queue(shards)
        self._down = DownShards()
        self._routes = {
            one.name: self._route
            if one.name == shard
            else self._route.to(one.url, one.prefix, one.password_source)
            for one in shards
        }
        self.routes = [*self._routes.values()]

    def parts_of(self, queue: str) -> tuple[str, ...]:
        """The names of the shards that have this queue: several if it is spread."""
        return self._spread.get(queue) or (parts_of(self.shards, queue)[0].name,)

    def connection(self) -> AbstractContextManager[RedisConnection]:
        return self._routes[self._shard].channel().connection()

    def close(self) -> None:
        for route in self._routes.values():
            route.close()

    async def aclose(self) -> None:
        for route in self._routes.values():
            await route.aclose()

    def _made_servers(self) -> Servers:
        made = [
            self._server(partial(_connection, route), route.keys, name=name, parts_of=self.parts_of)
            for name, route in self._routes.items()
        ]
        return Servers(made, self._shard)

    def _write(self, jobs: Sequence[EncodedJob], route: Route | None = None) -> dict[str, str]:
        """Pushes to each shard the jobs of its queues. A shard that fails keeps no other one from
        its jobs, and what it surely has not of a spread queue goes to the other parts."""
        self._refuse_all_elsewhere(jobs)
        if not places_are_needed(jobs):
            return self._write_to_each(ShardedPush(jobs))
        placed, taken = take_places(self._routes, jobs)
        push = ShardedPush(placed)
        try:
            return self._write_to_each(push)
        finally:
            give_back_places(self._routes, taken, push.may_be_there())

    def _write_to_each(self, push: ShardedPush) -> dict[str, str]:
        for name, group in self._groups(push):
            try:
                duplicates = super()._write(group, self._routes[name])
            except ServerUnavailable as error:
                self._note_failure(push, name, group, error)
            else:
                self._note_answer(push, name, group, duplicates)
        return push.duplicates

    async def _awrite(
        self, jobs: Sequence[EncodedJob], route: Route | None = None
    ) -> dict[str, str]:
        """``_write``, awaited: one shard after the other."""
        self._refuse_all_elsewhere(jobs)
        if not places_are_needed(jobs):
            return await self._awrite_to_each(ShardedPush(jobs))
        return await self._apush_members(jobs)

    async def _apush_members(self, jobs: Sequence[EncodedJob]) -> dict[str, str]:
        from .store.loop.in_thread import in_thread  # noqa: PLC0415 - needs asyncio, which runs here

        def give_back(taken: Sequence[TakenPlaces], there: Collection[str] = ()) -> None:
            give_back_places(self._routes, taken, there)

        take = partial(take_places, self._routes, jobs)
        placed, taken = await in_thread(take, lambda found: give_back(found[1]))
        push = ShardedPush(placed)
        try:
            duplicates = await self._awrite_to_each(push)
        except GeneratorExit:
            raise  # the loop is gone: nothing can be awaited
        except BaseException:
            await in_thread(lambda: give_back(taken, push.may_be_there()))
            raise
        await in_thread(lambda: give_back(taken, push.may_be_there()))
        return duplicates

    async def _awrite_to_each(self, push: ShardedPush) -> dict[str, str]:
        for name, group in self._groups(push):
            try:
                duplicates = await super()._awrite(group, self._routes[name])
            except ServerUnavailable as error:
                self._note_failure(push, name, group, error)
            except BaseException as error:  # it was cancelled
                push.add_outcome(error)
                raise
            else:
                self._note_answer(push, name, group, duplicates)
        return push.duplicates

    def _groups(self, push: ShardedPush) -> Iterator[tuple[str, list[EncodedJob]]]:
        """The jobs for one shard after the other, until none is left. The caller notes what became
        of each group before it takes the next one. Raises ServerUnavailable in the end if a job
        could be pushed nowhere."""
        left = push.jobs
        while left:
            push.moved = []
            yield from self._by_shard(left, push.failed).items()
            left = push.moved
        if push.is_lost:
            raise _as_one(push.failed, push.pushed, len(push.jobs))

    def _note_answer(
        self, push: ShardedPush, name: str, group: list[EncodedJob], duplicates: dict[str, str]
    ) -> None:
        self._down.note_answer(name)
        push.duplicates |= duplicates
        push.pushed += [job.jid for job in group if job.jid not in duplicates]

    def _note_failure(
        self, push: ShardedPush, name: str, group: list[EncodedJob], error: ServerUnavailable
    ) -> None:
        if not isinstance(error, ServerRefused):
            queues = {job.queue for job in group if job.queue in self._spread}
            self._down.note_failure(name, error, queues)
        push.failed[name] = error
        moved = self._for_other_parts(group, error, push.failed)
        push.is_lost = push.is_lost or len(moved) + len(error.pushed) < len(group)
        push.moved += moved

    def _refuse_all_elsewhere(self, jobs: Iterable[EncodedJob]) -> None:
        for job in jobs:
            if job.needs is not None and (job.lock or job.window):
                self._refuse_elsewhere(job, job.needs)

    def _refuse_elsewhere(self, job: EncodedJob, needs: PushNeeds) -> None:
        """Raises InvalidJob for a unique, debounced or throttled job whose queue is on another
        shard than that of its class: a lock there knows nothing of the locks here."""
        name, kind = needs.name, "throttled" if needs.unique is None else "unique"
        kind = kind if needs.debounce is None else "debounced"
        spec = registry.find(name)
        home = DEFAULT_QUEUE if spec is None else spec.options.get("queue", DEFAULT_QUEUE)
        if spec is not None and self.parts_of(home) != self.parts_of(job.queue):
            here, there = (", ".join(self.parts_of(queue)) for queue in (home, job.queue))
            raise InvalidJob(
                f"job {shown(name)} is {kind}, and its queue {home!r} is on the shard {here}: it "
                f"cannot be pushed to {job.queue!r} on the shard {there}"
            )

    def _by_shard(
        self, jobs: Iterable[EncodedJob], failed: Collection[str]
    ) -> dict[str, list[EncodedJob]]:
        """The jobs by the shard that they are pushed to: none of those that have ``failed``."""
        found: dict[str, list[EncodedJob]] = {}
        for job in jobs:
            parts = self.parts_of(job.queue)
            name = part_of(parts, part_key(job))
            if len(parts) > 1 and (failed or self._down) and not _is_once(job):
                name = self._part_that_is_up(parts, job, failed)
            found.setdefault(name, []).append(job)
        return found

    def _part_that_is_up(
        self, parts: Sequence[str], job: EncodedJob, failed: Collection[str]
    ) -> str:
        """The first part in turn that has not failed, and is not known to be down; if all are down,
        the first that has not failed."""
        left = [name for name in in_turn(parts, part_key(job)) if name not in failed]
        return next((name for name in left if self._down.may_be_tried(name)), left[0])

    def _for_other_parts(
        self, group: Iterable[EncodedJob], error: ServerUnavailable, failed: Collection[str]
    ) -> list[EncodedJob]:
        """The jobs that surely are not on the shard that failed, and have a part elsewhere. A shard
        that refuses them is there, and says what is to be done: its jobs go nowhere else. No other
        part knows which jobs were pushed once."""
        if isinstance(error, ServerRefused):
            return []
        there = {*error.pushed, *error.unknown}
        return [
            job
            for job in group
            if job.jid not in there
            and not _is_once(job)
            and any(p not in failed for p in self.parts_of(job.queue))
        ]


class ShardedPush:
    """How far one push has come: ``failed`` are the shards that did not take their jobs, ``moved``
    are jobs of such a shard that go to another part next. ``is_lost``: a job can go nowhere."""

    def __init__(self, jobs: Sequence[EncodedJob]) -> None:
        self.jobs = jobs
        self.pushed: list[str] = []
        self.duplicates: dict[str, str] = {}
        self.failed: dict[str, ServerUnavailable] = {}
        self.moved: list[EncodedJob] = []
        self.is_lost = False
        self._ended = PushOutcome()

    def may_be_there(self) -> set[str]:
        """The jids of the jobs that are in Redis, or may be."""
        errors = self.failed.values()
        known = (*self.pushed, *self._ended.pushed, *self._ended.unknown)
        return {*known, *(jid for each in errors for jid in (*each.pushed, *each.unknown))}

    def add_outcome(self, error: BaseException) -> None:
        """``error`` has ended the push at one shard: it tells of the others, too."""
        self._ended = there = push_outcome(error) or PushOutcome()
        earlier = [jid for each in self.failed.values() for jid in each.pushed]
        doubted = [jid for each in self.failed.values() for jid in each.unknown]
        pushed = (*self.pushed, *earlier, *there.pushed)
        text = f"over all shards {len(pushed):,} of {len(self.jobs):,} jobs were pushed"
        outcome = PushOutcome(pushed, (*doubted, *there.unknown))
        note_outcome(error, outcome, text if len(self.jobs) > 1 else "")


class TakenPlaces(NamedTuple):
    """The places of jobs, by their jids, in a batch of another shard.

    A script that pushes a job to one shard cannot give it an index in a batch of another. So a push
    takes places there first, and the batch waits for these members. When it is known which of them
    were pushed, it gives back the rest. If that is never said, since the process dies or the shard
    is away, the leader finds out (clock/standing_batches.py)."""

    into: PushedInto
    token: str
    places: dict[str, int]


def places_are_needed(jobs: Sequence[EncodedJob]) -> bool:
    """Whether a job is to be a member of a batch that may be on another shard."""
    return any(_into(job) is not None for job in jobs)


def take_places(
    routes: Mapping[str, Route], jobs: Sequence[EncodedJob]
) -> tuple[list[EncodedJob], list[TakenPlaces]]:
    """Takes places for these jobs. Returns the jobs with their indices. Raises BatchFinished and
    ServerUnavailable."""
    groups: dict[PushedInto, list[str]] = {}
    for job in jobs:
        if (into := _into(job)) is not None:
            groups.setdefault(into, []).append(job.jid)
    taken: list[TakenPlaces] = []
    try:
        for into, jids in groups.items():
            token = secrets.token_hex(8)
            via = "" if into.via is None else into.via
            first = _ask(routes, into, "join", via, len(jids), token)
            taken.append(TakenPlaces(into, token, {jid: first + n for n, jid in enumerate(jids)}))
    except ServerUnavailable:
        give_back_places(routes, taken, ())
        raise
    places = {jid: place for each in taken for jid, place in each.places.items()}
    return [_placed(job, places) if job.jid in places else job for job in jobs], taken


def give_back_places(
    routes: Mapping[str, Route], taken: Sequence[TakenPlaces], pushed: Collection[str]
) -> None:
    """Gives back the places of jobs that were not ``pushed``: those that may be count as pushed. A
    shard that is away is told by its leader."""
    for into, token, places in taken:
        left = [place for jid, place in places.items() if jid not in pushed]
        try:
            _ask(routes, into, "joined", token, *left)
        except ServerUnavailable:
            continue


def _into(job: EncodedJob) -> PushedInto | None:
    into = None if job.needs is None else job.needs.batch
    return into if into is not None and into.at else None


def _placed(job: EncodedJob, places: Mapping[str, int]) -> EncodedJob:
    return replace(job, payload=job.payload.replace(INDEX, b"%d" % places[job.jid]))


def _ask(routes: Mapping[str, Route], into: PushedInto, *arguments: Any) -> Any:
    """Changes the batch; each of these changes may be repeated after a lost reply."""
    route = routes[into.at]
    names = route.keys.of_batch(into.bid, into.above)
    given = (1 + len(into.above), *arguments)
    for is_last in (False, True):
        try:
            with route.channel().connection() as connection:
                return connection.script(BATCH_CHANGE, names, given)
        except ServerUnavailable as error:
            if is_last or isinstance(error, ServerRefused):
                raise
    return None


class DownShards:
    """The shards that did not take a push, each with the moment (monotonic) of its next try, and
    the rest before that. Safe in threads and after a fork: each step is one of a dict."""

    def __init__(self) -> None:
        self._rests: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._rests)

    def may_be_tried(self, name: str) -> bool:
        """Whether a push may go to that shard. While it is down, one in each rest may: that one
        claims the try."""
        known = self._rests.get(name)
        if known is None:
            return True
        due, rest = known
        if monotonic() < due:
            return False
        self._rests[name] = monotonic() + rest, rest
        return True

    def note_failure(self, name: str, error: Exception, queues: Collection[str]) -> None:
        """A push to that shard has failed, and from now on the jobs of ``queues`` go to their other
        parts. Logs the first failure."""
        if not queues:
            return
        known = self._rests.get(name)
        rest = _FIRST_REST if known is None else min(_LONGEST_REST, 2 * known[1])
        self._rests[name] = monotonic() + rest, rest
        if known is None:
            why = error.__cause__ or error  # the error itself says what became of one push
            _log.warning(_IS_DOWN, name, ", ".join(sorted(queues)), why)

    def note_answer(self, name: str) -> None:
        """A push to that shard has succeeded. Logs it after a failure."""
        if self._rests and self._rests.pop(name, None) is not None:
            _log.warning("the shard %s takes jobs again", name)


def _is_once(job: EncodedJob) -> bool:
    return job.needs is not None and job.needs.is_once


def _connection(route: Route) -> AbstractContextManager[RedisConnection]:
    return route.channel().connection()


def _as_one(
    failed: dict[str, ServerUnavailable], pushed: Sequence[str], total: int
) -> ServerUnavailable:
    """One error for several: the first, with the texts of all and the jids of all shards."""
    first = next(iter(failed.values()))
    inside = [*pushed, *(jid for error in failed.values() for jid in error.pushed)]
    text = "; ".join(f"shard {name}: {error}" for name, error in failed.items())
    if pushed or len(failed) > 1:
        text += f"; over all shards {len(inside):,} of {total:,} jobs were pushed"
    unknown = tuple(jid for error in failed.values() for jid in error.unknown)
    first.args = (text,)
    first.pushed, first.unknown = tuple(inside), unknown
    return first
