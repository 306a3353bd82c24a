"""The commands that the jobs of one place have in common: list, show, and the actions on many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import click

from ..api import Filter, JobEntry, Outcome
from ..api.changes import MOST_UNDONE
from ..screens.job_acts import loss_of_dead_jobs
from ..servers import Server
from ..wire.printable import shown_name
from .bulk import Action, How, acts, perform
from .completion import complete_queues
from .job_facts import print_job, print_jobs
from .options import configuration, connected, finds_redis, json_option
from .output import as_json_line, echo
from .question import confirmed
from .queues import warn_of_unknown_queues
from .selection import filters, limit_option, take_filter

EVERY: Final = Filter()
CAN_BE_UNDONE: Final = f"Up to {MOST_UNDONE:,} can be put back with `forkq undo` for a while."
_WHICH: Final = "which jobs? Give jids, a filter such as --class or --older-than, or --all"


class Jobs(Protocol):
    """What a JobSet has, and the queues together."""

    def scan(self, where: Filter = ..., *, newest_first: bool = ...) -> Iterator[JobEntry]:
        """Those that ``where`` names."""
        ...

    def find(self, jid: str) -> JobEntry | None:
        """The job with that id."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where the jobs of a group of commands are. ``one`` is such a job ("dead job")."""

    location: str
    one: str
    jobs: Callable[[Server], Jobs]
    newest_first: bool = False

    def empty(self, where: Filter) -> str:
        """What is said if there is none."""
        return f"there is no {self.one}" if where == EVERY else f"no {self.one} matches"


@dataclass(frozen=True, slots=True)
class Verb:
    """An action: its name, what has happened then, the method of ``Jobs`` that does it. ``always``:
    the arguments of each call. ``options`` are for the method too."""

    name: str
    done: str
    method: str
    help: str
    always: dict[str, Any] = field(default_factory=dict)
    options: tuple[Callable[[Any], Any], ...] = ()
    asks_for_one: bool = False


_TO = click.option(
    "--to", required=True, metavar="QUEUE", shell_complete=complete_queues, help="To which queue."
)
_FRESH = click.option(
    "--fresh", is_flag=True, help="Forget its failures: it has all retries again."
)
RETRY = Verb("retry", "enqueued", "retry_all", "Run jobs now.", options=(_FRESH,))
KILL = Verb("kill", "moved to the dead set", "kill_all", "Move jobs to the dead set.")
MOVE = Verb("move", "moved", "move_all", "Send jobs to another queue.", options=(_TO,))
DELETE = Verb(
    "delete", "deleted", "delete_all", "Delete jobs; `forkq undo` can put them back for a while.",
    always={"undo": True}, asks_for_one=True,
)  # fmt: skip


class ListFirst(click.Group):
    """Without a command, it lists: ``forkq dead --class Mail`` is ``forkq dead list ...``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        if bare and not ctx.resilient_parsing:  # which a shell's TAB asks for
            args = ["list", *args]
        return super().parse_args(ctx, args)


def job_group(name: str, help_: str, place: Place, verbs: Sequence[Verb]) -> click.Group:
    """The group ``forkq NAME``."""
    group = ListFirst(name, help=help_)
    group.add_command(_list_command(place))
    group.add_command(_show_command(place))
    for verb in verbs:
        group.add_command(_act_command(place, verb))
    return group


def _list_command(place: Place) -> click.Command:
    @click.command("list", help=f"List each {place.one}, or those that the options name.")
    @filters
    @limit_option
    @json_option
    @finds_redis
    def list_(limit: int | None, wants_json: bool, **flags: Any) -> int:
        where = take_filter(flags)
        server = connected(configuration(**flags))
        entries = place.jobs(server).scan(where, newest_first=place.newest_first)
        text = place.empty(where)
        found = print_jobs(entries, place.location, text, limit=limit, wants_json=wants_json)
        return 0 if found or where == EVERY else 1

    return list_


def _show_command(place: Place) -> click.Command:
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


def _missing(place: Place, jid: str) -> int:
    what = shown_name(jid)
    echo(f"{what} is no {place.one}; `forkq find {what}` looks everywhere", err=True)
    return 1


def _act_command(place: Place, verb: Verb) -> click.Command:
    def act(jids: tuple[str, ...], everything: bool, **flags: Any) -> int:
        how = How(*(flags.pop(name) for name in ("dry_run", "yes", "limit", "wants_json")))
        where = take_filter(flags)
        more: dict[str, Any] = {n: flags.pop(n) for n in ("fresh", "to") if n in flags}
        _check_choice(jids, where, everything=everything)
        if jids and how.most is not None:
            raise click.UsageError("--limit bounds a filter or --all, not jids")
        config = configuration(**flags)
        server = connected(config)
        if "to" in more:
            warn_of_unknown_queues(server, [more["to"]], config)
        return _act(server, place, verb, jids, where, how, _arguments(more))

    for option in reversed(verb.options):
        act = option(act)
    act = filters(acts(limit_option(json_option(finds_redis(act)))))
    act = click.argument("jids", nargs=-1, metavar="[JID]...")(act)
    return click.command(verb.name, help=verb.help)(act)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the method, which calls the target ``queue``."""
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
    place: Place,
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
    server: Server, place: Place, verb: Verb, done: str, run: Callable[..., Outcome]
) -> Action:
    """The action on jobs of a place."""
    action = Action(verb.name, done, place.one, run)
    if verb is not KILL:
        return action
    return replace(action, loss=partial(loss_of_dead_jobs, server))


class Clearable(Protocol):
    """A JobSet or a Queue."""

    @property
    def size(self) -> int:
        """How many jobs it has."""
        ...

    def clear(self) -> int:
        """Deletes them at once, for good."""
        ...

    def delete_all(self, where: Filter = ..., *, undo: bool = ...) -> Outcome:
        """Deletes them in batches."""
        ...


_CLEARS: Final = (
    click.option("--dry-run", is_flag=True, help="Only count them."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    click.option("--no-undo", is_flag=True, help="Keep none, which frees Redis at once."),
    json_option,
    finds_redis,
)


def clears(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a command that clears."""
    for option in reversed(_CLEARS):
        command = option(command)
    return command


def clear_command(one: str, jobs: Callable[[Server], Clearable]) -> click.Command:
    """``clear``: deletes all."""

    @click.command("clear", help=f"Delete every {one}. {CAN_BE_UNDONE}")
    @clears
    def clear(dry_run: bool, yes: bool, no_undo: bool, wants_json: bool, **flags: Any) -> int:
        server = connected(configuration(**flags))
        return cleared(
            one, jobs(server), How(dry_run, yes, wants_json=wants_json), undo=not no_undo
        )

    return clear


def cleared(one: str, jobs: Clearable, how: How, *, undo: bool, empty: str = "") -> int:
    """Clears after a question. Returns the exit code. Redis keeps what can be put back, so many
    jobs are deleted for good, and at once; fewer ones without ``undo``. ``empty`` says that there
    is no job, in better words than ``one``."""
    count = jobs.size
    action = Action("clear", "deleted", one, partial(jobs.delete_all, undo=True))
    if not count:
        echo(f"{empty or f'there is no {one}'}: nothing to do", err=True)
        return 1
    keeps = undo and count <= MOST_UNDONE
    if how.dry_run or (keeps and how.yes):
        return perform(action, EVERY, how)
    warning = "?" if keeps else "? This cannot be undone"
    if not (how.yes or confirmed("clear", f"Delete {action.counted(count)}{warning}")):
        return 1
    if keeps:
        return perform(action, EVERY, replace(how, yes=True))
    done = jobs.clear()
    echo(as_json_line({"done": done}) if how.wants_json else f"{action.counted(done)} deleted")
    return 0
