"""What happened, for people: a trace as a story."""

from __future__ import annotations

from collections.abc import Iterator

from .explorer import Found
from .ghosts import Violation, jid_of
from .stage import Event, Situation, Stage
from .store import Store
from .talk import model_time
from .world import World

_SAYS = {
    "kill": "is killed",
    "late kill": "is killed; what it has sent still arrives",
    "lose request": "loses its connection before the server reads",
    "lose reply": "loses the reply",
    "late loss": "loses its connection; what it has sent still arrives",
    "born": "starts",
    "retire": "ends: no suspect waits",
    "forgotten": "is gone",
}
_REFUSALS = {
    "OOM": "the server is full",
    "READONLY": "the server is a replica",
    "NOPERM": "the server refuses the name",
}
_VERBS = {
    "fetch": "fetches",
    "fetch_suspects": "fetches among the suspects",
    "requeue": "returns its unknown leases",
    "recover": "returns the jobs of the dead",
    "leases_of_owner": "lists the leases of the dead",
    "retry": "sends the job to the retries",
    "bury": "buries the job",
    "isolate": "moves the job to the suspects",
    "due_jobs": "moves due jobs",
    "jobs_move": "moves jobs",
    "rules_change": "changes the rules",
    "set_add": "adds to a set",
    "push": "pushes marked jobs",
    "push_newest": "pushes a job in the place of the one that waits",
    "push_debounced": "pushes a debounced job",
    "ticket_start": "asks which job is to be run",
    "effects_alone": "holds a lock",
    "cursor_save": "saves the cursor",
    "cursor_return": "returns the job with its cursor",
    "cancel": "notes what is cancelled",
    "cancelled_jobs": "looks for cancelled jobs",
    "cancel_closed": "forgets what is cancelled",
    "end": "ends the job",
    "expired_jobs": "ends expired jobs in a list",
    "marked_look": "notes when to look again",
}


def story(world: World, found: Found, store: Store | None = None) -> str:
    """The events of a trace, one a line, and the promise that they break."""
    with model_time():
        lines = list(_lines(Stage(world, store), found))
    return "\n".join([f"In the world {world.name!r}:", *lines, f"=> {found.violation}"])


def _lines(stage: Stage, found: Found) -> Iterator[str]:
    now = stage.first()
    for number, event in enumerate(found.trace, 1):
        yield f"{number:3}. {_sentence(stage, now, event)}"
        try:
            now = stage.follow(now, event)
        except Violation:
            return


def _sentence(stage: Stage, now: Situation, event: Event) -> str:
    if event.what == "late":
        command = stage.commands.values[stage.common(now).late[event.detail][0]][0]
        return f"a late command arrives: {_command(stage, now, command, '')}"
    if event.what == "token":
        return f"time passes: queue {event.detail} has a token again"
    if event.what == "time":
        return "time passes: what was to expire has expired"
    who, actor = stage.parts[event.actor].name, stage.actor(now, event.actor)
    if event.what in _SAYS:
        return f"{who} {_SAYS[event.what]}{_sent(stage, now, event)}"
    if event.what == "answer":
        return f"{who} {_answer(stage, now, event)}"
    command = stage.commands.values[actor.wire[0]][0]
    refusal = event.what if event.what in _REFUSALS else ""
    told = f" ({_REFUSALS[refusal]})" if refusal else ""
    return f"{who} {_command(stage, now, command, refusal)}{told}"


def _sent(stage: Stage, now: Situation, event: Event) -> str:
    wire = stage.actor(now, event.actor).wire
    if not event.is_fault or not wire:
        return ""
    names = [_name(stage, stage.commands.values[each][0]) for each in wire]
    return f" ({', '.join(names)})"


def _answer(stage: Stage, now: Situation, event: Event) -> str:
    request, answer = stage.request(event.actor, stage.actor(now, event.actor)), event.detail
    of = getattr(request, "of", "")
    if getattr(request, "what", "") == "perform" and answer in (
        "ends",
        "fails",
        "snoozes",
        "discards",
        "is cancelled",
    ):
        return f"performs job {of}, which {answer}"
    if answer == "dies":
        return f"performs job {of}, which kills it"
    if answer in ("long", "soon"):
        return f"wakes up by itself{', after a long time' if answer == 'long' else ''}"
    what = getattr(request, "what", "")
    said = {"push": f"pushes job {of}", "act": of, "death": f"hears that {answer[0]} has died"}
    said |= {"due": "wakes up for due jobs", "sweep": "begins", "pop": f"pops from {answer}"}
    said |= {"step": f"works at job {of}, and {answer}"}
    said |= {"look": "begins a look into a queue", "cancel": "looks for what is cancelled"}
    return said.get(what, f"goes on after a pause ({what})")


def _command(stage: Stage, now: Situation, command: tuple[bytes, ...], refusal: str) -> str:
    name = _name(stage, command)
    reply = stage.store.run(stage.common(now).store, command, refusal).value  # type: ignore[arg-type]
    jids = (
        [jid_of(each) for each in reply if isinstance(each, bytes)] if type(reply) is tuple else []
    )
    found = [jid for jid in jids if jid]
    about = sorted({jid for part in command if (jid := jid_of(part))})
    jobs = f": job {', '.join(found or about)}" if found or about else ""
    return f"{_VERBS.get(name, 'sends ' + name)}{jobs}"


def _name(stage: Stage, command: tuple[bytes, ...]) -> str:
    if command[0] == b"EVALSHA":
        return stage.store.names[command[1]]
    return b" ".join(command[:2]).decode("utf-8", "replace")
