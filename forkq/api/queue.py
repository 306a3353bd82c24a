"""A queue, read and controlled from any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from ..config.spread import why_refused
from ..errors import ConfigError, ForkqError, InvalidRule, ServerUnavailable, configuration
from ..limits.overrides import (
    FORGET_ALL,
    FORGOTTEN,
    LIFTED,
    Fields,
    in_force,
    limit_to,
    process_limit_to,
    rate_to,
)
from ..limits.patterns import is_pattern
from ..limits.rate_text import rate_text
from ..limits.rules import Rules
from ..servers import Server
from ..store.scripts import RULES_CHANGE, SET_ADD
from ..wire.keys import Keys
from ..wire.printable import cut
from ..wire.times import now
from .bulk import Decide, Orders, Outcome, act, act_on_each, delete
from .changes import checked_queue
from .door import servers
from .entry import JobEntry
from .filters import EVERY, Filter, check_filter
from .job_holder import JobHolder
from .pages import BEHIND, ListPages, Pages, SelectedPages, scan, selected_in_queue
from .processes import Process, processes
from .queue_report import QueueReport, of_parts, queue_reports
from .running import RunningJob, busy_in_sidekiq, running
from .stats import latency

F = TypeVar("F")


class Queue(JobHolder):
    """The queue of that name, whether it has jobs or not. Without a server it is the queue on its
    shard, or on all of its shards if it is spread over several (``[spread]``): counts are those of
    all parts, and what is done is done on each (``forkq.api.shards_of`` names them).

    Each attribute is read from Redis when it is used. ``limit``, ``process_limit`` and ``rate`` are
    the rules in force: those set at run time, else those of this process's configuration. Setting
    one takes effect on all hosts at once, and lasts beyond restarts. None lifts the rule; ``reset``
    returns to the configuration.

    Raises InvalidRule for a name that is not one queue's or a value that is not a rule, and
    ServerUnavailable. A queue that Redis has may have any name: Sidekiq pushes to each.
    """

    location = "queued"

    __slots__ = ("name",)

    def __init__(self, name: str, server: Server | None = None) -> None:
        super().__init__(server)
        self.name: Final = name
        try:
            _check_name(name)
        except InvalidRule:
            if not self._exists():
                raise

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    @property
    def size(self) -> int:
        """How many jobs are queued in the queue, its suspects included."""
        sizes = chain.from_iterable(self._each(lambda part: part._of_lists("LLEN")))
        return sum(int(size or 0) for size in sizes)

    @property
    def busy(self) -> int:
        """How many jobs of the queue are in progress, on all hosts; in Sidekiq's processes as of
        their last heartbeats."""
        return sum(self._each(_busy))

    @property
    def latency(self) -> float:
        """For how many seconds its next job, or its next suspect, has been queued, whichever is
        longer; 0 if it is empty."""
        heads = chain.from_iterable(self._each(lambda part: part._of_lists("LINDEX", -1)))
        return max(map(latency, heads))

    @property
    def paused(self) -> bool:
        """Whether the queue is paused: no child fetches from it."""
        return all(self._each(lambda part: part._ask("SISMEMBER", part._keys.paused, part.name)))

    def pause(self, by: str = "") -> bool:
        """Stops all children on all hosts from fetching from the queue; its running jobs go on.
        ``by`` is who has it paused, for others to see. Returns whether it was not paused before."""
        return any(self._do(lambda part: part._pause(by)))

    def _pause(self, by: str) -> bool:
        named = ("HSET", self._keys.paused_by, self.name, f"{now():.0f} {cut(by)}")
        unnamed = ("HDEL", self._keys.paused_by, self.name)
        with self.server.connection() as connection:
            if not connection.script(SET_ADD, (self._keys.paused,), (self.name,)):
                return False
            connection.pipeline([named if by else unnamed])  # a refusal is no matter: it is paused
        return True

    def resume(self) -> bool:
        """Ends the pause. Returns whether it was paused."""
        return any(self._do(Queue._resume))

    def _resume(self) -> bool:
        keys = self._keys
        asked = ("SREM", keys.paused, self.name), ("HDEL", keys.paused_by, self.name)
        [was_paused, _] = self.server.ask_leniently(*asked, strict=1)
        return bool(was_paused)

    @property
    def limit(self) -> int | None:
        """How many jobs of the queue may be in progress on all hosts; None: any number."""
        return self._rules().limit

    @limit.setter
    def limit(self, count: int | None) -> None:
        self.change(limit_to(count))

    @property
    def process_limit(self) -> int | None:
        """How many jobs of the queue may be in progress in one child; None: any number."""
        return self._rules().process_limit

    @process_limit.setter
    def process_limit(self, count: int | None) -> None:
        self.change(process_limit_to(count))

    @property
    def rate(self) -> str | None:
        """How many jobs of the queue may start in a period, such as "100/minute"; None: any
        number."""
        rate = self._rules().rate
        return None if rate is None else rate_text(rate)

    @rate.setter
    def rate(self, rate: str | None) -> None:
        self.change(rate_to(rate))

    @property
    def burst(self) -> float | None:
        """How many jobs of the queue may start at once, if ``set_rate`` or the configuration says
        so; else None."""
        rate = self._rules().rate
        return None if rate is None else rate.burst

    def set_rate(self, rate: str, *, burst: int | None = None) -> None:
        """Sets the rate, and lets up to ``burst`` jobs start at once. Without ``burst``, that is
        one job plus what the rate allows in a tenth of a second."""
        self.change(rate_to(rate, burst))

    def reset(self) -> None:
        """Removes all rules that were set at run time; those of the configuration are in force
        again. A pause stays."""
        self.change(FORGET_ALL)

    def change(self, fields: Fields) -> None:
        """Changes several rules in one step; for ``forkq limits``. ``fields`` come from the
        functions of forkq/limits/overrides.py. Raises InvalidRule for a rule that would have to
        count the jobs of all parts of a spread queue."""
        _refuse_if_spread(self.name, fields, self._parts)
        self._do(lambda part: part._change(fields))

    def _change(self, fields: Fields) -> None:
        written = [part for field in fields.items() for part in field]
        lists = (self._keys.controlled, self._keys.control(self.name))
        self.server.run(RULES_CHANGE, lists, (self.name, *written))

    def scan(self, where: Filter = EVERY, *, newest_first: bool = False) -> Iterator[JobEntry]:
        """The queued jobs that ``where`` names: first the suspects, then the others, in both the
        next one first. Reads page after page: a job that is there all the time comes, even if
        others are pushed and fetched meanwhile. The parts of a spread queue come one after the
        other."""
        return chain.from_iterable(
            part._scan(where, newest_first=newest_first) for part in self._parts
        )

    def _scan(self, where: Filter, *, newest_first: bool) -> Iterator[JobEntry]:
        check_filter(where)
        if where.keys is not None and where.near is not None:
            near = min(where.near, self.size)
            found = selected_in_queue(self.server, self.name, where.keys, near)
            return (entry for entry in found if where.matches(entry))
        return scan(ListPages(self.server, self.name, newest_first=newest_first), where)

    def page(
        self, offset: int = 0, count: int = 25, *, newest_first: bool = False
    ) -> list[JobEntry]:
        """A page of ``count`` queued jobs from the job with the number ``offset`` on, in the order
        of ``scan``; 0 is the next one."""
        *first, last = self._parts
        found: list[JobEntry] = []
        for part in first:
            if len(found) < count:
                found += part._page(offset, count - len(found), newest_first=newest_first)
                offset = max(0, offset - part.size)
        left = count - len(found)
        return [*found, *last._page(offset, left, newest_first=newest_first)] if left else found

    def _page(self, offset: int, count: int, *, newest_first: bool) -> list[JobEntry]:
        pages = ListPages(self.server, self.name, newest_first=newest_first, offset=offset)
        found = pages.next(count)
        if pages.goes_on and len(found) < count:
            found += pages.next(count - len(found))
        return found

    def delete(self, jid: str) -> bool:
        """Deletes the queued job with that id. Returns whether it was there."""
        found = self.find(jid)
        return found is not None and found.delete()

    def clear(self) -> int:
        """Deletes all queued jobs of the queue at once, and frees their memory in the background.
        Its name leaves the list of queues, as in Sidekiq, until the next push. Jobs in progress go
        on. Returns how many there were. This cannot be undone. Where jobs may have features, they
        are deleted in pages, and those that come meanwhile stay."""
        return sum(self._do(Queue._clear))

    def _clear(self) -> int:
        [_, suspects] = self._of_lists("LLEN")  # raises WrongType: that value is not deleted
        [marked] = self.server.ask(("ZSCORE", self._keys.marked, self.name))
        if marked is not None:
            return self._end_each()
        parts = [(self._keys.queue(self.name), self._keys.queues)]
        if suspects is not None:
            parts.append((self._keys.suspects(self.name), self._keys.suspected))
        commands = [
            (("LLEN", key), ("UNLINK", key), ("SREM", names, self.name)) for key, names in parts
        ]
        replies = self.server.ask_at_once(*chain.from_iterable(commands))
        return sum(map(int, replies[::3]))

    def _end_each(self) -> int:
        """Deletes the jobs of a queue that has marked ones, in pages. Returns how many."""
        done = act(ListPages(self.server, self.name), delete, Orders(EVERY)).done
        if not any(self._of_lists("LLEN")):
            self.server.ask(("SREM", self._keys.queues, self.name))
        return done

    @property
    def in_flight(self) -> list[RunningJob]:
        """The jobs of the queue that are in progress, on all hosts, the longest first."""
        found = chain.from_iterable(self._each(lambda part: running(server=part.server)))
        mine = (job for job in found if job.queue == self.name)
        return sorted(mine, key=lambda job: -job.elapsed)

    @property
    def served_by(self) -> list[Process]:
        """The living processes that fetch from it."""
        found = chain.from_iterable(self._each(lambda part: processes(part.server)))
        return [process for process in found if process.serves(self.name)]

    def report(self) -> QueueReport:
        """A report with all that explains why the queue drains or does not."""
        found = self._each(lambda part: queue_reports(part.name, server=part.server))
        reports = list(chain.from_iterable(found))
        if len(reports) == 1:
            return reports[0]
        return of_parts(
            {part.server.name: one for part, one in zip(self._parts, reports, strict=True)}
        )

    def _exists(self) -> bool:
        if type(self.name) is not str or not self.name:
            return False
        try:
            return any(
                self._each(lambda part: part._ask("SISMEMBER", part._keys.queues, part.name))
            )
        except ForkqError:
            return False

    def _rules(self) -> Rules:
        first = self._parts[0]
        configured = first.server.rules.of(self.name)
        return in_force(configured, first._ask("HGETALL", first._keys.control(self.name)))

    @property
    def _parts(self) -> tuple[Queue, ...]:
        """The queue on each of its shards, if it is spread over several; else itself alone."""
        if self._server is not None:
            return (self,)
        found = servers().parts_of(self.name)
        return tuple(Queue(self.name, one) for one in found) if len(found) > 1 else (self,)

    def _each(self, act: Callable[[Queue], F]) -> list[F]:
        """What ``act`` returns for each part. One that is down keeps no other one from it: its
        error comes at the end."""
        parts = self._parts
        if len(parts) == 1:
            return [act(parts[0])]
        done, down = [], {}
        for part in parts:
            try:
                done.append(act(part))
            except ServerUnavailable as error:
                down[part.server.name] = error
        if down:
            name, first = next(iter(down.items()))
            first.args = (f"shard {name}: {first}",)
            raise first
        return done

    def _do(self, act: Callable[[Queue], F]) -> list[F]:
        """``_each`` for what changes the parts."""
        try:
            return self._each(act)
        except ServerUnavailable as error:
            if len(self._parts) > 1:
                error.args = (f"{error}; the other parts have done it: do it again for that one",)
            raise

    def _of_lists(self, command: str, *arguments: Any) -> list[Any]:
        """The replies for the queue's own list and for the list of its suspects; None for the
        latter if it is damaged. Raises WrongType for the former."""
        both = (self._keys.queue(self.name), self._keys.suspects(self.name))
        return self.server.ask_leniently(*((command, key, *arguments) for key in both), strict=1)

    def _ask(self, *command: Any) -> Any:
        [reply] = self.server.ask(command)
        return reply

    @property
    def _keys(self) -> Keys:
        return self.server.keys

    @property
    def _queues(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def _servers(self) -> tuple[Server, ...]:
        return tuple(part.server for part in self._parts)

    def _usual_server(self) -> Server:
        found = servers().parts_of(self.name)
        if len(found) > 1:
            names = ", ".join(one.name for one in found)
            raise ConfigError(
                f'the queue "{self.name}" is spread over the shards {names}, and this is about one '
                "of them: name it (api.server)"
            )
        return found[0]

    def _act(self, decide: Decide, orders: Orders) -> Outcome:
        return act_on_each([part._pages(orders.where) for part in self._parts], decide, orders)

    def _pages(self, where: Filter) -> Pages:
        check_filter(where)
        if where.keys is None or where.near is None:
            return ListPages(self.server, self.name)
        near = min(where.near, self.size)
        found = selected_in_queue(self.server, self.name, where.keys, near)
        place = (self.server, self.location, self.name, near + BEHIND)
        return SelectedPages(found, len(where.keys), *place)


def whole_queue(name: str, server: Server) -> Queue:
    """The queue on ``server``, or on all of its shards if it is spread over several."""
    return Queue(name) if len(server.parts_of(name)) > 1 else Queue(name, server)


def _busy(part: Queue) -> int:
    """How many jobs of one part are in progress."""
    [leases] = part.server.ask(("HLEN", part.server.keys.inflight(part.name)))
    return int(leases) + busy_in_sidekiq(part.server)[part.name]


def _refuse_if_spread(name: str, fields: Fields, parts: Sequence[Queue]) -> None:
    """Raises InvalidRule for a limit or a rate of a spread queue. To lift one is always allowed."""
    if len(parts[0].server.parts_of(name)) == 1:
        return
    for field, table in (("limit", "limits"), ("rate", "rates")):
        if fields.get(field, FORGOTTEN) not in (FORGOTTEN, LIFTED):
            raise InvalidRule(why_refused(name, table))


def _check_name(name: str) -> None:
    if type(name) is str and is_pattern(name):
        raise InvalidRule(
            f'"{name}" is a pattern, and at run time each queue has rules of its own: name '
            f"one, or write the pattern's rules into {configuration.place}"
        )
    checked_queue(name)
