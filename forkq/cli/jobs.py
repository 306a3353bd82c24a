"""``forkq jobs``, ``retries``, ``dead`` and ``scheduled``: jobs of queues and sets, and actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Protocol, TypeVar

import click
import msgspec

from .. import api
from ..api import DeadSet, Filter, JobEntry, Outcome, Queue, RetrySet, ScheduledSet
from ..api.bulk import OnProgress
from ..api.changes import MOST_UNDONE, checked_queue
from ..api.filters import EVERY
from ..errors import InvalidRule, ServerUnavailable
from ..screens.job_acts import loss_of_dead_jobs
from ..screens.jobs import JOBS, JobLine, of_entries
from ..servers import Server
from ..store.find_job import Location
from ..values import replace
from ..wire.printable import shown_name
from .bulk import Action, Clearable, How, acts, cleared, clears, perform
from .find import print_job
from .options import (
    ListFirst,
    WholeNumber,
    age,
    complete_queues,
    configuration,
    connected,
    finds_redis,
    json_option,
    queue_named,
)
from .output import echo, echo_objects, print_values
from .queues import warn_of_unknown_queues

Command = TypeVar("Command", bound=Callable[..., Any])
_NAMES = ("job", "error", "queue", "jid", "match", "older_than")
CAN_BE_UNDONE: Final = f"Up to {MOST_UNDONE:,} can be put back with `forkq undo` for a while."
_WEIGHTED: Final = re.compile(r"(.+)[,:][0-9]+")
_WHICH: Final = "which jobs? Give jids, a filter such as --class or --older-than, or --all"
# How many jobs a table has, unless --limit says another number.
_ROWS: Final = 50


def _text(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """The text of an option; the option's callback. Raises BadParameter for an empty text, such as
    that of a variable that is not set: it would let all jobs pass."""
    if value == "":
        raise click.BadParameter("it is empty; give a text, or leave the option out for all jobs")
    return value


def _target(context: click.Context, option: click.Parameter, value: str) -> str:
    """The queue to which jobs are moved; the option's callback. Raises BadParameter for what is no
    queue, before it is asked or warned of anything."""
    try:
        return checked_queue(value)
    except InvalidRule as error:
        raise click.BadParameter(str(error)) from None


_FILTERS = (
    click.option(
        "--class", "job", callback=_text, metavar="NAME",
        help="Only this class; * and ? may be in it.",
    ),
    click.option(
        "--error", callback=_text, metavar="NAME",
        help="Only jobs whose latest error is of this class.",
    ),
    click.option(
        "-q", "--queue", callback=_text, metavar="Q", shell_complete=complete_queues,
        help="Only this queue.",
    ),
    click.option("--jid", callback=_text, metavar="JID", help="Only the job with this id."),
    click.option(
        "--match", callback=_text, metavar="TEXT", help="Only jobs with this text in their payload."
    ),
    click.option(
        "--older-than", callback=age, metavar="T",
        help="Only those that are there for longer: 10m, 2h, 7d; or since before 2026-11-20.",
    ),
)  # fmt: skip

limit_option = click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most N jobs.")


def filters(command: Command) -> Command:
    """Adds the options that choose jobs."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def take_filter(flags: dict[str, Any]) -> Filter:
    """Removes the options of ``filters`` from ``flags``, and returns the Filter that they make."""
    return Filter(**{name: flags.pop(name) for name in _NAMES})


def _refuse_weight(server: Server, queue: str | None) -> None:
    """Raises UsageError for a queue with a weight, as ``forkq start -q`` takes it: no job is in a
    queue of such a name."""
    match = _WEIGHTED.fullmatch(queue or "")
    if match is not None and queue not in api.queue_names(server):
        raise click.UsageError(
            f"there is no queue {shown_name(queue or '')!r}; weights (NAME,WEIGHT) are for "
            f"`forkq start` and the configuration: write -q {shown_name(match[1])}"
        )


class JobSource(Protocol):
    """What gives jobs to a command: a JobSet, or all queues together."""

    def scan(self, where: Filter = ..., *, newest_first: bool = ...) -> Iterator[JobEntry]:
        """The jobs that ``where`` names."""
        ...

    def find(self, jid: str) -> JobEntry | None:
        """The job with that id; None if there is none."""
        ...


class JobPlace(msgspec.Struct, frozen=True):
    """Where the jobs of a group of commands are. ``one`` is such a job ("dead job")."""

    location: Location
    one: str
    jobs: Callable[[Server], JobSource]
    newest_first: bool = False

    def empty(self, where: Filter) -> str:
        """The sentence that there is no such job."""
        return JOBS[self.location].empty.brief if where == EVERY else f"no {self.one} matches"


class Verb(msgspec.Struct, frozen=True):
    """An action: its name, what has happened then, the method of ``JobSource`` that does it.
    ``always``: the arguments of each call. ``options`` are for the method too."""

    name: str
    done: str
    method: str
    help: str
    always: dict[str, Any] = msgspec.field(default_factory=dict)
    options: tuple[Callable[[Any], Any], ...] = ()
    asks_for_one: bool = False


_TO = click.option(
    "--to", required=True, metavar="QUEUE", shell_complete=complete_queues, callback=_target,
    help="To which queue."
)  # fmt: skip
_FRESH = click.option(
    "--fresh", is_flag=True, help="Forget its failures: it has all retries again."
)
RETRY = Verb("retry", "enqueued", "retry_all", "Run jobs now.", options=(_FRESH,))
KILL = Verb("kill", "moved to the dead set", "kill_all", "Move jobs to the dead set.")
MOVE = Verb("move", "moved", "move_all", "Send jobs to another queue.", options=(_TO,))
CANCEL = Verb(
    "cancel", "cancelled", "cancel_all", asks_for_one=True,
    help="Cancel jobs: they end for good, wherever they are by then. `forkq cancel` is for those "
    "that run.",
)  # fmt: skip
DELETE = Verb(
    "delete", "deleted", "delete_all", "Delete jobs; `forkq undo` can put them back for a while.",
    always={"undo": True}, asks_for_one=True,
)  # fmt: skip


def job_group(name: str, help_: str, place: JobPlace, verbs: Sequence[Verb]) -> click.Group:
    """Makes the group of commands ``forkq NAME``."""
    group = ListFirst(name, help=help_)
    group.add_command(_list_command(place))
    group.add_command(_show_command(place))
    for verb in verbs:
        group.add_command(_act_command(place, verb))
    return group


def _list_command(place: JobPlace) -> click.Command:
    @click.command("list", help=f"List each {place.one}, or those that the options name.")
    @filters
    @limit_option
    @json_option
    @finds_redis
    def list_(limit: int | None, wants_json: bool, **flags: Any) -> int:
        where = take_filter(flags)
        server = connected(configuration(**flags))
        _refuse_weight(server, where.queue)
        entries = place.jobs(server).scan(where, newest_first=place.newest_first)
        text = place.empty(where)
        found = print_jobs(entries, place.location, text, limit=limit, wants_json=wants_json)
        return 0 if found or where == EVERY else 1

    return list_


def _show_command(place: JobPlace) -> click.Command:
    @click.command("show", help=f"Show all that is known of a {place.one}.")
    @click.argument("jid")
    @json_option
    @finds_redis
    def show(jid: str, wants_json: bool, **flags: Any) -> int:
        server = connected(configuration(**flags))
        entry = place.jobs(server).find(jid)
        if entry is None:
            return _missing(place, jid)
        print_job(entry, wants_json=wants_json, with_args=True)
        return 0

    return show


def _missing(place: JobPlace, jid: str) -> int:
    what = shown_name(jid)
    echo(f"{what} is no {place.one}; `forkq find {what}` looks everywhere", err=True)
    return 1


def _act_command(place: JobPlace, verb: Verb) -> click.Command:
    def act(jids: tuple[str, ...], everything: bool, **flags: Any) -> int:
        how = How(*(flags.pop(name) for name in ("dry_run", "yes", "limit", "wants_json")))
        where = take_filter(flags)
        more: dict[str, Any] = {n: flags.pop(n) for n in ("fresh", "to") if n in flags}
        _check_choice(jids, where, everything=everything)
        if jids and how.most is not None:
            raise click.UsageError("--limit bounds a filter or --all, not jids")
        config = configuration(**flags)
        server = connected(config)
        _refuse_weight(server, where.queue)
        if "to" in more:
            warn_of_unknown_queues(server, [more["to"]], config)
        return _act(server, place, verb, jids, where, how, _arguments(more))

    for option in reversed(verb.options):
        act = option(act)
    act = filters(acts(limit_option(json_option(finds_redis(act)))))
    act = click.argument("jids", nargs=-1, metavar="[JID]...")(act)
    return click.command(verb.name, help=verb.help)(act)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the method, which calls the target ``queue``."""
    return {{"to": "queue"}.get(name, name): value for name, value in options.items()}


def _check_choice(jids: Sequence[str], where: Filter, *, everything: bool) -> None:
    """Raises UsageError unless the jobs are named in one way."""
    ways = [bool(jids), where != EVERY, everything]
    if not any(ways):
        raise click.UsageError(_WHICH)
    if sum(ways) > 1:
        raise click.UsageError("jids, filters and --all name jobs in three ways: give one")


def _act(
    server: Server,
    place: JobPlace,
    verb: Verb,
    jids: Sequence[str],
    where: Filter,
    how: How,
    more: dict[str, Any],
) -> int:
    jobs = place.jobs(server)
    run = partial(getattr(jobs, verb.method), **verb.always, **more)
    done = f"{verb.done} to {shown_name(more['queue'])}" if "queue" in more else verb.done
    if not jids:
        return perform(_action(server, place, verb, done, run), where, how)
    found = {jid: jobs.find(jid) for jid in jids}
    missing = [_missing(place, jid) for jid, entry in found.items() if entry is None]
    keys = frozenset(entry.key for entry in found.values() if entry is not None)
    if not keys:
        return 1
    queues = {entry.queue for entry in found.values() if entry is not None}
    only = queues.pop() if len(queues) == 1 else None  # the other queues are not searched
    named = replace(how, yes=how.yes or not verb.asks_for_one)
    action = _action(server, place, verb, done, run)
    return perform(action, Filter(keys=keys, queue=only), named) or min(len(missing), 1)


def _action(
    server: Server, place: JobPlace, verb: Verb, done: str, run: Callable[..., Outcome]
) -> Action:
    """The Action that a verb means for the jobs of a place."""
    action = Action(verb.name, done, place.one, run)
    if verb is not KILL:
        return action
    return replace(action, loss=partial(loss_of_dead_jobs, server))


def clear_command(one: str, jobs: Callable[[Server], Clearable]) -> click.Command:
    """Makes the command ``clear``, which deletes all jobs."""

    @click.command("clear", help=f"Delete every {one}. {CAN_BE_UNDONE}")
    @clears
    def clear(dry_run: bool, yes: bool, no_undo: bool, wants_json: bool, **flags: Any) -> int:
        server = connected(configuration(**flags))
        return cleared(
            one, jobs(server), How(dry_run, yes, wants_json=wants_json), undo=not no_undo
        )

    return clear


def print_jobs(
    entries: Iterable[JobEntry],
    location: Location,
    if_empty: str,
    *,
    limit: int | None,
    wants_json: bool,
) -> int:
    """A table of the first jobs, or each as an object on its own line. Returns how many."""
    sheet = JOBS[location]
    if wants_json:
        return echo_objects(map(sheet.as_object, map(JobLine, islice(entries, limit))))
    shown = limit or _ROWS
    found = of_entries(islice(entries, shown + 1))
    print_values(sheet, found[:shown], wants_json=False, if_empty=if_empty)
    if len(found) > shown:
        echo(f"and more: these are the first {shown:,}; --limit N shows N")
    return len(found[:shown])


class QueuedJobs:
    """The jobs of all queues, or of the one that a filter names."""

    def __init__(self, server: api.Server) -> None:
        self._server = server

    def scan(self, where: Filter = EVERY, *, newest_first: bool = False) -> Iterator[JobEntry]:
        """Reads queue after queue, in each the next job first."""
        found = (queue.scan(where, newest_first=newest_first) for queue in self._queues(where))
        return chain.from_iterable(found)

    def find(self, jid: str) -> JobEntry | None:
        """The queued job with that id."""
        found = api.entry(jid, self._server)
        return found if found is not None and found.location == "queued" else None

    def delete_all(self, where: Filter, **more: Any) -> Outcome:
        """Deletes the jobs in each queue, by ``Queue.delete_all``."""
        return _in_each(self._queues(where), where, lambda queue: queue.delete_all, more)

    def kill_all(self, where: Filter, **more: Any) -> Outcome:
        """Moves the jobs of each queue to the dead set, by ``Queue.kill_all``."""
        return _in_each(self._queues(where), where, lambda queue: queue.kill_all, more)

    def move_all(self, where: Filter, *, queue: str, **more: Any) -> Outcome:
        """Moves the jobs of each queue but the target itself, by ``Queue.move_all``."""
        named = {"queue": queue, **more}
        return _in_each(self._queues(where), where, lambda source: source.move_all, named)

    def cancel_all(self, where: Filter, **more: Any) -> Outcome:
        """Cancels the jobs of each queue, by ``Queue.cancel_all``."""
        return _in_each(self._queues(where), where, lambda queue: queue.cancel_all, more)

    def _queues(self, where: Filter) -> list[Queue]:
        names = api.queue_names(self._server) if where.queue is None else [where.queue]
        return [queue_named(name, self._server) for name in names]


def _in_each(
    queues: Iterable[Queue],
    where: Filter,
    method: Callable[[Queue], Callable[..., Outcome]],
    more: dict[str, Any],
) -> Outcome:
    """Acts on each queue, and returns the outcomes together; ``most`` bounds the sum. If Redis is
    lost, ServerUnavailable has the sum so far."""
    total, most, progress = Outcome(), more.pop("most", None), more.pop("progress", None)
    for queue in queues:
        if queue.name == more.get("queue"):
            continue
        if most is not None and total.matched >= most:
            break
        left = None if most is None else most - total.matched
        watch = None if progress is None else _added_to(total, progress)
        try:
            outcome = method(queue)(where=where, most=left, progress=watch, **more)
        except ServerUnavailable as error:
            error.outcome = _sum(total, error.outcome or Outcome())
            raise
        total = _sum(total, outcome)
    return total


def _added_to(before: Outcome, progress: OnProgress) -> OnProgress:
    return lambda so_far: progress(_sum(before, so_far))


def _sum(one: Outcome, other: Outcome) -> Outcome:
    numbers = ("total", "seen", "matched", "done", "gone", "refused")
    sums = {name: getattr(one, name) + getattr(other, name) for name in numbers}
    return replace(one, **sums, undo=f"{one.undo} {other.undo}".strip())


_QUEUED: Final = JobPlace("queued", "queued job", QueuedJobs)
jobs = job_group("jobs", "Jobs that wait in queues.", _QUEUED, (KILL, MOVE, CANCEL, DELETE))


_RETRYING: Final = JobPlace("retrying", "retrying job", RetrySet)
_DEAD: Final = JobPlace("dead", "dead job", DeadSet, newest_first=True)
_SCHEDULED: Final = JobPlace("scheduled", "scheduled job", ScheduledSet)

retries = job_group(
    "retries",
    "Failed jobs that wait for their next try.",
    _RETRYING,
    (RETRY, KILL, MOVE, CANCEL, DELETE),
)
dead = job_group("dead", "Jobs that were given up.", _DEAD, (RETRY, MOVE, DELETE))
scheduled = job_group(
    "scheduled", "Jobs for later.", _SCHEDULED, (RETRY, KILL, MOVE, CANCEL, DELETE)
)

retries.add_command(clear_command(_RETRYING.one, RetrySet))
dead.add_command(clear_command(_DEAD.one, DeadSet))
scheduled.add_command(clear_command(_SCHEDULED.one, ScheduledSet))
