"""A world that is played: its situations, and what leads from one to the next.

What can happen: the server carries out the next command of a process; a job ends; the world gives a
process what it waits for (a death, a due job, an order of a person); or a fault. A process that got
an answer goes on at once until it needs another one: what it does meanwhile, nobody sees.

What a process can do depends on the process and on Redis, rarely on other processes. So it is
worked out once, and found again in all situations that have both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from forkq.values import replace

from .commands import MOMENT, NOW, moment_of
from .ghosts import Fates, Ghost, Violation
from .programs import KEYS, ORDINARY, SOLO
from .store import REFUSALS, Refusal, Store, packed
from .talk import LOST, Ask, Connect, Peek, Send, Take, Wait
from .world import World, parts_of

UNBORN, DEAD, RESCUED = -1, -2, -3
# Commands that reach the server after their connection has ended, those of each in order.
Late: TypeAlias = "tuple[tuple[int, ...], ...]"


class Actor(NamedTuple):
    """A process in a state of the world. ``local``: its own state, or UNBORN, DEAD, RESCUED.
    ``wire``: commands that the server has not carried out; ``stream``: what it may read; ``keys``:
    those that the server watches for it; ``life``: how often it was born before; ``begun``: of a
    dead one, the number of the lease that began last."""

    local: int
    wire: tuple[int, ...] = ()
    stream: tuple[int, ...] = ()
    keys: frozenset[bytes] = frozenset()
    life: int = 0
    begun: int = 0


class Common(NamedTuple):
    """What belongs to no process. ``faults``: how many may still happen. ``spent``: the queues
    whose rate lets no job start for now."""

    store: int
    ghosts: tuple[Ghost, ...] = ()
    late: Late = ()
    faults: int = 0
    spent: frozenset[str] = frozenset()


# The number of what is common, then that of each actor.
Situation: TypeAlias = "tuple[int, ...]"


class Event(NamedTuple):
    """What happens: which actor (its number; -1: none), what, a number or a word with it, and
    whether it is a fault."""

    actor: int
    what: str
    detail: Any = None
    is_fault: bool = False


class Effect(NamedTuple):
    """What an event does. ``changed``: keys of which the server tells those that watch them;
    ``rescued``: the dead children whose jobs are safe; ``begins``: the job that the actor begins to
    perform; ``seen``: the keys that it depends on; ``broken``: the promise that breaks, if one
    does."""

    common: int
    actor: int
    changed: frozenset[bytes] = frozenset()
    rescued: tuple[str, ...] = ()
    begins: str = ""
    seen: frozenset[bytes] = frozenset()
    broken: Violation | None = None


class Interned:
    """Numbers for values that many situations share."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass(slots=True)
class Turn:
    """A step of one actor while it is worked out. ``around``: what it can see of the others."""

    number: int
    actor: Actor
    common: Common
    around: tuple[Any, ...] = ()
    changed: frozenset[bytes] = frozenset()
    rescued: tuple[str, ...] = ()
    begins: str = ""
    seen: frozenset[bytes] = frozenset()

    def put(self, **changes: Any) -> None:
        """Changes the actor."""
        self.actor = self.actor._replace(**changes)


@dataclass(slots=True)
class Choices:
    """What an actor can do in a situation. ``depends``: on other actors, or on what Redis has;
    ``broken``: the promise that its being there breaks."""

    steps: list[tuple[Event, Effect]] = field(default_factory=list)
    faults: list[tuple[Event, Effect]] = field(default_factory=list)
    depends: bool = True
    broken: Violation | None = None


class Stage:
    """A world that is played."""

    def __init__(self, world: World, store: Store | None = None) -> None:
        self.world = world
        self.store = store or Store()
        self.parts = list(parts_of(world))
        self.commands, self.items = Interned(), Interned()
        self.fates = Fates(world, self.store)
        self._natures = {job.jid: job.nature for job in world.jobs}
        self._commons, self._actors = Interned(), Interned()
        # By part: what is known of each common state, actor, and what that sees of the others.
        self._known: list[dict[tuple[Any, ...], Choices]] = [{} for _ in self.parts]
        self._looks: list[dict[int, str]] = [{} for _ in self.parts]
        self._others: dict[int, Choices] = {}
        self._heard: dict[tuple[int, int, frozenset[bytes]], int] = {}

    # The beginning

    def first(self) -> Situation:
        """All processes have started, and wait."""
        common = Common(self.store.empty, self.fates.first(self.store.empty))
        born = [at for at, part in enumerate(self.parts) if part.nonce != "solo"]
        for at in born:
            if self.parts[at].is_child:
                common = self._with_record(common, self.parts[at].identity % 0, lives=True)
        actors = [Actor(0 if at in born else UNBORN) for at in range(len(self.parts))]
        now = (self._commons.number(common), *map(self._actors.number, actors))
        for at in born:
            now = self._played(now, at, self._go_on)
        while moving := [at for at in born if self.actor(now, at).wire]:
            now = self._played(now, moving[0], self._serve)
        for command in self.world.stored:
            now = self._played(now, -1, partial(self._run, sent=packed(command)))
        common = self.common(now)
        common = common._replace(
            ghosts=self.fates.first(common.store), faults=self.world.most_faults
        )
        return (self._commons.number(common), *now[1:])

    def _played(self, now: Situation, number: int, step: Callable[[Turn], object]) -> Situation:
        turn = self._turn(now, number)
        step(turn)
        return self.after(now, number, self._effect(turn))

    # What can happen

    def choices(self, now: Situation) -> Iterator[tuple[int, Choices]]:
        """What each actor can do, with its number; then what happens without one (-1)."""
        common = now[0]
        for number, known in enumerate(self._known):
            actor = now[number + 1]
            around = self._around(now, number) if self._looks[number].get(actor, "?") else ()
            found = known.get((common, actor, around))
            if found is None:
                found = known[common, actor, around] = self._find(self._turn(now, number, around))
            yield number, found
        found = self._others.get(common)
        if found is None:
            found = self._others[common] = self._find_others(self._turn(now, -1))
        if found.steps:
            yield -1, found

    def _find(self, turn: Turn) -> Choices:
        """All that the actor can do. This is the only place that works it out."""
        found = Choices(depends=self._depends(turn))
        try:
            self._check_sleeper(turn)
        except Violation as violation:
            found.broken = violation
        for event in [*self._events(turn)]:
            found.steps.append((event, self._try(turn, event)))
        for event in [*self._faults(turn)] if turn.common.faults else ():
            found.faults.append((event, self._try(turn, event)))
        return found

    def _depends(self, turn: Turn) -> bool:
        """Whether more than the actor and the keys that its step uses decide what it can do."""
        if turn.actor.wire:
            return False
        request = self.request(turn.number, turn.actor) if turn.actor.local >= 0 else None
        return getattr(request, "what", "") not in ("push", "act")

    def _find_others(self, turn: Turn) -> Choices:
        """Late commands arrive; and time passes: a queue has a token again."""
        events = [Event(-1, "late", at) for at in range(len(turn.common.late))]
        events += [Event(-1, "token", queue) for queue in sorted(turn.common.spent)]
        if self.fates.has_moment(turn.common) and not self._is_later(turn.common):
            events.append(Event(-1, "time"))
        return Choices([(event, self._try(turn, event)) for event in events])

    def _events(self, turn: Turn) -> Iterator[Event]:
        number, actor = turn.number, turn.actor
        if actor.wire:
            yield Event(number, "serve")
        elif actor.local >= 0:
            yield from self._answers(turn)
        elif actor.local in (UNBORN, RESCUED):
            is_solo = self.parts[number].nonce == "solo"
            if is_solo and actor.local == RESCUED:
                yield Event(number, "forgotten")
            elif not is_solo or self._has_suspects(turn.common):
                yield Event(number, "born")

    def _answers(self, turn: Turn) -> Iterator[Event]:
        number, request = turn.number, self.request(turn.number, turn.actor)
        if isinstance(request, Wait):
            if request.timed:
                # Before that it would find what it found, again and again.
                if self.world.rates.difference(turn.common.spent):
                    yield Event(number, "answer", "soon")
            elif self.parts[number].is_child and self._has_lease(turn):
                yield Event(number, "answer", "long")
            if self.parts[number].nonce == "solo" and not self._has_suspects(turn.common):
                yield Event(number, "retire")
        elif isinstance(request, Ask):
            for answer in self._answers_to(turn, request):
                yield Event(number, "answer", answer)

    def _answers_to(self, turn: Turn, request: Ask) -> Iterator[Any]:
        state = self.store.states[turn.common.store]
        if request.what == "perform":
            nature = self._natures[request.of.partition(" ")[0]]
            if nature == "snoozes" and request.of.endswith(" snoozed"):
                nature = "good"
            yield {"good": "ends", "poison": "dies"}.get(nature, nature)
            if request.of.partition(" ")[0] in self.fates.look(turn.common.store).cancelled:
                yield "is cancelled"
        elif request.what == "step":
            _, word, at = request.of.split()
            yield from ("ends",) if at == "2" else ("goes on", "stops")[: 1 + (word == "at")]
        elif request.what == "death":
            yield from turn.around
        elif request.what == "pop":
            yield from (name for name in self.world.queues if KEYS.queue(name).encode() in state)
        elif self._may_go_on(turn, request):
            yield "go"

    def _may_go_on(self, turn: Turn, request: Ask) -> bool:
        """Whether there is a reason for what the process asks to do."""
        state = self.store.states[turn.common.store]
        if request.what == "due":
            return b"retry" in state or b"schedule" in state
        if request.what == "look":
            # The first moments have come together. Later ones are at most a minute away.
            has_moment = any(score < inf for _, score in state.get(b"forkq:marked", ("", ()))[1])
            return has_moment and self._is_later(turn.common)
        if request.what == "cancel":
            return b"forkq:cancelled" in state
        if request.what == "sweep":
            leases = self.fates.leases(turn.common.store)
            return bool({lease.rpartition(b"/")[0] for lease in leases}.difference(turn.around))
        if request.what == "pause":
            # While the set is damaged, each try is as the one before, and they would have no end.
            return bool(state.get(b"retry", ("zset", ()))[0] == "zset")
        return request.what in ("push", "act")

    def _faults(self, turn: Turn) -> Iterator[Event]:
        number, actor, kinds = turn.number, turn.actor, self.world.faults
        if actor.local < 0 or self.parts[number].name == "ruby":
            return
        may_die = self.parts[number].is_child and self._has_something(turn)
        if may_die and "kill" in kinds:
            yield Event(number, "kill", is_fault=True)
        if may_die and actor.wire and "late kill" in kinds:
            yield Event(number, "late kill", is_fault=True)
        if not actor.wire:
            return
        if isinstance(self.request(number, actor), Take):
            if "lose" in kinds:
                yield Event(number, "lose request", is_fault=True)
                yield Event(number, "lose reply", is_fault=True)
            if "late loss" in kinds:
                yield Event(number, "late loss", is_fault=True)
        command, store = self.commands.values[actor.wire[0]][0], turn.common.store
        for refusal in REFUSALS:
            if refusal in kinds:
                usual = self.store.run(store, command)
                if self.store.run(store, command, refusal) != usual:
                    yield Event(number, refusal, is_fault=True)

    def _has_something(self, turn: Turn) -> bool:
        """Whether the death of this child can matter: it has a lease, or talks to Redis."""
        return bool(turn.actor.wire or turn.actor.stream) or self._has_lease(turn)

    def _has_lease(self, turn: Turn) -> bool:
        owner = self._identity(turn.number, turn.actor).encode() + b"/"
        return any(lease.startswith(owner) for lease in self.fates.leases(turn.common.store))

    def _is_later(self, common: Common) -> bool:
        """Whether the moments have come at which jobs expire."""
        return NOW in self.store.states[common.store]

    def _has_suspects(self, common: Common) -> bool:
        index = self.store.states[common.store].get(b"forkq:suspects", ("set", ()))[1]
        return any(name.decode() in self.world.queues for name in index)

    # What an actor sees of the others

    def _around(self, now: Situation, number: int) -> tuple[Any, ...]:
        """The master sees the dead, a sweep whose leases have an owner, and a new child whether a
        sweep may know its name."""
        actor = now[number + 1]
        looks = self._looks[number].get(actor)
        if looks is None:
            looks = self._looks[number][actor] = self._looks_for(number, self._actors.values[actor])
        if not looks:
            return ()
        others = [(part, self.actor(now, at)) for at, part in enumerate(self.parts)]
        if looks == "sweeps":
            sweeps = [(part, each) for part, each in others if part.name == "the sweep"]
            return tuple(part.request(each.local) != Ask("sweep") for part, each in sweeps)
        children = [(part.identity % each.life, each) for part, each in others if part.is_child]
        if looks == "dead":
            return tuple((name, each.begun) for name, each in children if each.local == DEAD)
        waits_for_rescue = (DEAD,) if not self.world.hasty else ()
        return tuple(
            name.encode()
            for name, each in children
            if each.local >= 0 or each.local in waits_for_rescue
        )

    def _looks_for(self, number: int, actor: Actor) -> str:
        if actor.local < 0:
            return "sweeps"
        request = self.request(number, actor)
        if isinstance(request, Wait) and self.parts[number].nonce == "solo":
            return "sweeps"
        return {Ask("death"): "dead", Ask("sweep"): "leases"}.get(request, "")

    # What then is

    def after(self, now: Situation, number: int, effect: Effect) -> Situation:
        """The situation after it. Raises Violation."""
        if effect.broken is not None:
            raise effect.broken
        then = list(now)
        then[0] = effect.common
        if number >= 0:
            then[number + 1] = effect.actor
        if effect.changed:
            for at in range(len(self.parts)):
                if at != number:
                    then[at + 1] = self._hear(at, then[at + 1], effect.changed)
        if effect.begins:
            self._check_alone(then, number, effect.begins)
        for identity in effect.rescued:
            self._note_rescued(then, identity)
        return tuple(then)

    def follow(self, now: Situation, event: Event) -> Situation:
        """The situation after an event of a trace. Raises Violation."""
        for number, choices in self.choices(now):
            for each, effect in choices.steps + choices.faults:
                if each == event:
                    return self.after(now, number, effect)
        raise AssertionError(f"{event} cannot happen")

    def _hear(self, number: int, actor: int, changed: frozenset[bytes]) -> int:
        """The server tells this actor of the change, if it asked for that."""
        found = self._heard.get((number, actor, changed))
        if found is None:
            turn = Turn(number, self._actors.values[actor], Common(-1))
            if told := turn.actor.keys & changed:
                reports = (self.items.number(("report", (key,))) for key in sorted(told))
                turn.put(keys=turn.actor.keys - told, stream=(*turn.actor.stream, *reports))
                if not isinstance(self.request(number, turn.actor), Ask):
                    self._go_on(turn)
                assert not turn.begins, "a report alone begins no job"
            found = self._heard[number, actor, changed] = self._actors.number(turn.actor)
        return found

    def _check_alone(self, then: list[int], number: int, jid: str) -> None:
        for at, part in enumerate(self.parts):
            actor = self._actors.values[then[at + 1]]
            if at != number and actor.local >= 0:
                request = part.request(actor.local)
                if getattr(request, "what", "") in ("perform", "step"):
                    self.fates.check_beside(jid, request.of.split()[0], part)

    def _note_rescued(self, then: list[int], identity: str) -> None:
        for at in range(len(self.parts)):
            actor = self._actors.values[then[at + 1]]
            if actor.local == DEAD and self._identity(at, actor) == identity:
                then[at + 1] = self._actors.number(Actor(RESCUED, life=actor.life))

    # A step, worked out

    def _try(self, turn: Turn, event: Event) -> Effect:
        turn = replace(turn)
        try:
            self._do(turn, event)
        except Violation as violation:
            return Effect(-1, -1, broken=violation)
        return self._effect(turn)

    def _effect(self, turn: Turn) -> Effect:
        common, actor = self._commons.number(turn.common), self._actors.number(turn.actor)
        return Effect(common, actor, turn.changed, turn.rescued, turn.begins, turn.seen)

    def _do(self, turn: Turn, event: Event) -> None:
        number, what = event.actor, event.what
        if event.is_fault:
            turn.common = turn.common._replace(faults=turn.common.faults - 1)
            if self.parts[number].is_child:
                turn.common = self.fates.fault(turn.common, self._identity(number, turn.actor))
        if what == "serve":
            self._serve(turn)
        elif what in REFUSALS:
            for _ in turn.actor.wire:  # what was sent together is refused together
                self._serve_one(turn, what)  # type: ignore[arg-type]
        elif what == "late":
            self._serve_late(turn, event.detail)
        elif what == "token":
            self._give_token(turn, event.detail)
        elif what == "time":
            self._pass_time(turn)
        elif what in ("lose request", "lose reply", "late loss"):
            self._cut(turn, what)
        elif what in ("kill", "late kill"):
            self._kill(turn, is_late=what == "late kill")
        elif what in ("retire", "forgotten", "born"):
            self._begin_or_end(turn, what)
        else:
            self._answer(turn, event.detail)

    def _begin_or_end(self, turn: Turn, what: str) -> None:
        if what == "retire":
            self._set_record(turn, lives=False)
        life = self._life(turn)
        if what != "born":
            turn.actor = Actor(UNBORN, life=life)
            return
        turn.actor = Actor(self.parts[turn.number].process.first, life=life)
        self._set_record(turn, lives=True)
        self._go_on(turn)

    def _answer(self, turn: Turn, answer: Any) -> None:
        request = self.request(turn.number, turn.actor)
        if isinstance(request, Ask) and request.what in ("perform", "step"):
            turn.common = self.fates.ended(turn.common, request.of, answer)
            if answer == "dies":
                self._kill(turn, is_late=False)
                return
        self._answered(turn, answer)
        self._go_on(turn)

    def _answered(self, turn: Turn, answer: Any) -> None:
        turn.put(local=self.parts[turn.number].process.after(turn.actor.local, answer))

    def _go_on(self, turn: Turn) -> None:
        """The process goes on until it needs the world."""
        while True:
            actor, answer = turn.actor, None
            request = self.request(turn.number, actor)
            if isinstance(request, Send):
                sent = tuple(self._sent(turn.number, actor, each) for each in request.commands)
                turn.put(wire=actor.wire + sent)
            elif isinstance(request, Connect):
                turn.put(wire=(), stream=(), keys=frozenset())
            elif isinstance(request, Peek):
                answer = self.items.values[actor.stream[0]][0] if actor.stream else ""
            elif isinstance(request, Wait) and actor.stream:
                answer = "report"
            elif isinstance(request, Take) and actor.stream:
                answer = self.items.values[actor.stream[0]]
                turn.put(stream=actor.stream[1:])
            elif isinstance(request, Ask) and request.what == "time":
                answer = moment_of(self.store.states[turn.common.store].get(NOW, ("", None))[1])
                turn.seen |= {NOW}
                assert turn.common.store >= 0, "a report alone makes no process look at the time"
            elif isinstance(request, Ask) and request.what in _NOTES:
                self.fates.told(turn.common, request)
                turn.rescued += (request.of,) if request.what == "rescued" else ()
            else:
                if isinstance(request, Ask) and request.what == "perform":
                    part = self.parts[turn.number]
                    turn.common = self.fates.begins(turn.common, part, request.of)
                    turn.begins = request.of.partition(" ")[0]
                elif isinstance(request, Ask) and request.what == "step":
                    self.fates.steps(turn.common, request.of)
                    turn.seen |= {KEYS.iteration(request.of.partition(" ")[0]).encode()}
                return
            self._answered(turn, answer)

    def _serve(self, turn: Turn) -> None:
        """The server carries out a command; and with it the next one that was sent together with
        it, if that one has changed nothing, and registered no keys."""
        while True:
            actor, before = turn.actor, turn.common.store
            self._serve_one(turn, "")
            is_alone = len(actor.wire) == 1 or self.commands.values[actor.wire[0]][1]
            if is_alone or turn.common.store != before:
                return

    def _serve_one(self, turn: Turn, refusal: Refusal) -> None:
        actor = turn.actor
        sent, tracked = self.commands.values[actor.wire[0]]
        value = self._run(turn, sent, refusal)
        keys = turn.actor.keys.union(sent[1:]) if tracked else turn.actor.keys
        stream = (*actor.stream, self.items.number(("reply", value)))
        turn.put(wire=actor.wire[1:], stream=stream, keys=keys)
        self._go_on(turn)

    def _run(self, turn: Turn, sent: tuple[bytes, ...], refusal: Refusal = "") -> Any:
        """The reply. The server tells no client of a change that the client itself has made."""
        before = turn.common.store
        reply = self.store.run(before, sent, refusal)
        turn.common = turn.common._replace(store=reply.state)
        turn.changed |= reply.changed
        turn.seen |= reply.seen
        turn.put(keys=turn.actor.keys - reply.changed)
        part = self.parts[turn.number] if turn.number >= 0 else None
        turn.common = self.fates.served(before, turn.common, part)
        return reply.value

    def _serve_late(self, turn: Turn, at: int) -> None:
        late = turn.common.late
        first, *rest = late[at]
        others = (*late[:at], *late[at + 1 :])
        turn.common = turn.common._replace(late=_sorted(others, tuple(rest)))
        self._run(turn, self.commands.values[first][0])

    def _give_token(self, turn: Turn, queue: str) -> None:
        """The bucket of the queue is full again, so its key expires."""
        turn.common = turn.common._replace(spent=turn.common.spent - {queue})
        self._run(turn, packed(("DEL", KEYS.bucket(queue))))

    def _pass_time(self, turn: Turn) -> None:
        """All moments come at which a job expires. Meanwhile each rate has its tokens again."""
        for queue in sorted(turn.common.spent):
            self._give_token(turn, queue)
        state = dict(self.store.states[turn.common.store])
        state[NOW] = ("string", b"%d" % (MOMENT + _LATER))
        common = turn.common._replace(store=self.store.number_of(state))
        turn.common = self.fates.time_passed(common)
        turn.changed |= {NOW}

    def _cut(self, turn: Turn, how: str) -> None:
        wire = turn.actor.wire
        if how == "lose reply":
            self._run(turn, self.commands.values[wire[0]][0])
        elif how == "late loss":
            turn.common = turn.common._replace(late=_sorted(turn.common.late, wire))
        turn.put(wire=(), stream=(), keys=frozenset())
        self._answered(turn, LOST)
        self._go_on(turn)

    def _kill(self, turn: Turn, *, is_late: bool) -> None:
        actor, common = turn.actor, turn.common
        if is_late:
            turn.common = common._replace(late=_sorted(common.late, actor.wire))
        self._set_record(turn, lives=False)
        begun = self.parts[turn.number].process.nodes[actor.local].note[0]
        turn.actor = Actor(DEAD, life=actor.life, begun=begun)

    def _set_record(self, turn: Turn, *, lives: bool) -> None:
        identity = self._identity(turn.number, turn.actor)
        turn.common = self._with_record(turn.common, identity, lives=lives)

    def _with_record(self, common: Common, identity: str, *, lives: bool) -> Common:
        """A child has a record in Redis while it lives: its heartbeats renew it. That of a dead one
        expires, here at once."""
        state = dict(self.store.states[common.store])
        if lives:
            state[identity.encode()] = ("hash", ((b"info", b"{}"),))
        else:
            state.pop(identity.encode(), None)
        return common._replace(store=self.store.number_of(state))

    # For stories and checks

    def actor(self, now: Situation, number: int) -> Actor:
        """An actor as it is now."""
        found: Actor = self._actors.values[now[number + 1]]
        return found

    def common(self, now: Situation) -> Common:
        """What is not of one actor."""
        found: Common = self._commons.values[now[0]]
        return found

    def request(self, number: int, actor: Actor) -> Any:
        """What the process asks."""
        return self.parts[number].request(actor.local)

    def shown(self, common: int) -> Any:
        """What Redis has, and what became of the jobs, the same in all stages of a world."""
        found: Common = self._commons.values[common]
        return tuple(self.store.states[found.store].items()), found.ghosts

    def is_settled(self, now: Situation) -> bool:
        """Whether nothing is left to do: all jobs have ended, or are dead, and nothing is left to
        be cancelled."""
        common = self.common(now)
        if common.late or not self.fates.look(common.store).is_empty:
            return False
        if b"forkq:cancelled" in self.store.states[common.store]:
            return False
        return all(self._rests(at, self.actor(now, at)) for at in range(len(self.parts)))

    def check_end(self, now: Situation) -> None:
        """Raises Violation if nothing is left to do, and what was promised is not done."""
        if any(job.doc for job in self.world.jobs) and self.is_settled(now):
            common = self.common(now)
            self.fates.check_end(common, has_fault=common.faults < self.world.most_faults)

    def _rests(self, number: int, actor: Actor) -> bool:
        if actor.wire or actor.local == DEAD:
            return False
        has_plan = self.parts[number].name in ("the pusher", "a person")
        return not has_plan or self.request(number, actor).what == "done"

    def _turn(self, now: Situation, number: int, around: tuple[Any, ...] = ()) -> Turn:
        actor = self.actor(now, number) if number >= 0 else Actor(UNBORN)
        return Turn(number, actor, self.common(now), around)

    # Names

    def _identity(self, number: int, actor: Actor) -> str:
        """Under which this child is known in Redis."""
        return self.parts[number].identity % actor.life

    def _life(self, turn: Turn) -> int:
        """A new child gets a name of which no trace is left, nor a process that may know it."""
        common, name = turn.common, self.parts[turn.number].identity
        late = [self.commands.values[command] for each in common.late for command in each]
        contents = repr((self.store.states[common.store], late))
        is_known = any(turn.around)
        lives = range(turn.actor.life + 1 if is_known else 0, 100)
        return next(at for at in lives if name % at not in contents)

    def _check_sleeper(self, turn: Turn) -> None:
        """Raises Violation if this child sleeps though the fetch that it would send if it were
        woken would bring a job."""
        number, actor = turn.number, turn.actor
        if actor.local < 0 or not self.parts[number].is_child or actor.stream:
            return
        node = self.parts[number].process.nodes[actor.local]
        if isinstance(node.request, Wait) and not node.request.timed and node.note[1]:
            fetch = self._renamed(number, actor, node.note[1])
            self.fates.check_sleeper(turn.common.store, fetch, self.parts[number])

    def _renamed(self, number: int, actor: Actor, command: tuple[bytes, ...]) -> tuple[bytes, ...]:
        token = SOLO if self.parts[number].nonce == "solo" else ORDINARY
        own = self._identity(number, actor).encode()
        return tuple(part.replace(token.encode(), own) for part in command)

    def _sent(self, number: int, actor: Actor, sent: tuple[tuple[bytes, ...], bool]) -> int:
        command, tracked = sent
        if self.parts[number].is_child:
            command = self._renamed(number, actor, command)
        return self.commands.number((command, tracked))


# Seconds after which each job has expired that was there before.
_LATER: Final = 1000
# What a process tells the world, and does not wait for an answer.
_NOTES: Final = ("rescued", "pushed", "unknown", "not pushed", "duplicate", "act in vain")


def _sorted(
    late: tuple[tuple[int, ...], ...], more: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted((*late, more))) if more else late
