"""What must hold in each state of a world, and what has to be remembered to tell.

Each promise has a name and a sentence in ``PROMISES``. ``Violation`` names the one that is broken.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .programs import KEYS
from .store import Frozen, Store

if TYPE_CHECKING:
    from .stage import Common
    from .talk import Ask
    from .world import Part, World

PROMISES: Final = {
    "one place": "A job is in one place at most: a list, a set, or the lease of one process.",
    "nothing lost": "A job that was pushed is in Redis until it has ended, or a person deletes it.",
    "no return": "A job that has left Redis does not come back.",
    "told": "What the pusher is told is true: a job that was pushed has been in Redis.",
    "one at a time": "A job runs in one process at a time.",
    "once": "A job that has ended well runs again only if a fault has hit its process.",
    "alone": "Only a solo child runs a suspect.",
    "limit": "A fetch leaves no more jobs of a queue in progress than its limit.",
    "paused": "No fetch takes a job of a paused queue.",
    "rate": "No fetch takes a job of a queue whose rate has no token left.",
    "token": "A job that was fetched and not run gives its token back, once; no other job does.",
    "blocking": "No fetch takes a job of a queue while one that blocks it has jobs in progress.",
    "innocent": "A job that neither fails nor kills is never buried.",
    "index": "A queue with suspects is named among those that have some.",
    "marked": "A queue with a job that expires is named among those that the leader looks into.",
    "expired": "A job that has expired is not begun.",
    "in time": "Only a job that has expired, or would have by its next run, ends as expired.",
    "counted": "A job that expires, is discarded, replaced or cancelled, or snoozes, is counted as "
    "that, once.",
    "lock": "A unique job that waits or runs has its lock, so no two of one lock do; of those that "
    "take each other's place one runs and one waits.",
    "free": "A lock goes with its job.",
    "order": "No job runs after a newer one that takes its place, and none beside it.",
    "last change": "Of jobs that take each other's place the newest one runs.",
    "debounced": "Of debounced jobs that take each other's place at most one waits for more "
    "pushes; only that gives way, and not beyond its latest time.",
    "cursor": "The cursor of a job never goes back, and goes with the job; a run begins from it.",
    "cancelled": "Only a job that was cancelled ends so, and none that has ended well before.",
    "name": "A queue with jobs is named among the queues, unless the server refuses the name.",
    "awake": "A child that sleeps has nothing to take.",
    "nothing waits for ever": "From each state on, without more faults, all jobs can end or die.",
}


class Violation(Exception):
    """A promise is broken."""

    def __init__(self, promise: str, detail: str = "") -> None:
        assert promise in PROMISES
        super().__init__(f"{promise}: {PROMISES[promise]} {detail}".strip())
        self.promise = promise


class Ghost(NamedTuple):
    """What is remembered of a job. ``seen``: it has been in Redis. ``left``: it has ended or was
    deleted, and is gone from there. ``well``: it has ended well, or discarded itself. ``excused``:
    it may run again. ``over``: it has expired, or is beyond its latest time. ``run``: of a job that
    expires, how far it has come since it was fetched last: "", "begun", or "again" if it is to run
    again. ``begun``: a unique job has begun. ``stopped``: it was told while it ran that it is
    cancelled. ``reached``: the item before which it has stopped. ``arrived``: of those with a lock,
    as which one it came to Redis: a push may arrive late."""

    seen: bool = False
    left: bool = False
    well: bool = False
    excused: bool = False
    over: bool = False
    run: str = ""
    begun: bool = False
    stopped: bool = False
    reached: int = 0
    arrived: int = 0


_HARMLESS: Final = ("good", "snoozes", "discards", "iterates")
_ENDS: Final = KEYS.totals("ends").encode()
_MARKED: Final = KEYS.marked.encode()
_LOCK: Final = KEYS.unique("").encode()
_CANCELLED: Final = KEYS.cancelled.encode()
_SCHEDULE: Final = KEYS.schedule.encode()
_JID: Final = re.compile(rb'"jid":"(\w+)"')
_INFLIGHT: Final = re.compile(rb"\{queue:(.*)\}:inflight")
_SUSPECTS: Final = re.compile(rb"\{queue:(.*)\}:suspects")
_QUEUE: Final = re.compile(rb"queue:(.*)")
_OF_QUEUE: Final = re.compile(rb"(?:\{queue:(.*)\}:\w+|queue:(.*))")


def jid_of(payload: bytes) -> str:
    """The id of the job; "" if it has none."""
    found = _JID.search(payload)
    return found[1].decode() if found else ""


def _payloads(key: bytes, value: Frozen) -> list[bytes]:
    kind, contents = value
    if kind == "list":
        return [each for each in contents if b'"jid"' in each]
    if kind == "zset":
        return [each for each, _ in contents if b'"jid"' in each]
    if kind == "hash" and key.endswith(b":inflight"):
        return [each for _, each in contents]
    if kind == "hash" and key.startswith(_LOCK):  # the newest job, without an entry
        return [each for field, each in contents if field == b"next" and each]
    return []


class Look(NamedTuple):
    """What a state of Redis shows: the places of each job, the leases with their jobs, how many
    leases each queue has, the names of dead jobs, and of those that are cancelled."""

    places: dict[str, tuple[bytes, ...]]
    leases: dict[bytes, str]
    in_flight: dict[bytes, int]
    dead: frozenset[str]
    is_empty: bool
    cancelled: frozenset[str]


class Fates:
    """Follows the jobs of a world."""

    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._jids = [job.jid for job in world.jobs]
        self._looks: dict[int, Look] = {}
        self._innocent = {job.jid for job in world.jobs if job.nature in _HARMLESS}
        self._natures = {job.jid: job.nature for job in world.jobs}
        self._expiring = {job.jid for job in world.jobs if job.expires_in}
        self._jobs = {job.jid: job for job in world.jobs}
        self._debounced = {job.jid for job in world.jobs if job.is_debounced}
        self._locks = {
            job.jid: KEYS.unique(job.encoded.lock).encode() for job in world.jobs if job.doc
        }

    def first(self, state: int) -> tuple[Ghost, ...]:
        places = self.look(state).places
        return tuple(Ghost(seen=jid in places) for jid in self._jids)

    def leases(self, state: int) -> dict[bytes, str]:
        """Each lease with its job."""
        return self.look(state).leases

    def look(self, state: int) -> Look:
        """What the state shows. Raises Violation for what may be in no state."""
        found = self._looks.get(state)
        if found is None:
            found = self._looks[state] = self._look_at(self._store.states[state])
        return found

    def _look_at(self, state: dict[bytes, Frozen]) -> Look:
        places: dict[str, tuple[bytes, ...]] = {}
        leases: dict[bytes, str] = {}
        in_flight: dict[bytes, int] = {}
        for key, value in state.items():
            for payload in _payloads(key, value):
                jid = jid_of(payload)
                places[jid] = (*places.get(jid, ()), key)
            if found := _INFLIGHT.fullmatch(key):
                leases |= {lease: jid_of(payload) for lease, payload in value[1]}
                in_flight[found[1]] = len(value[1])
        for jid, keys in places.items():
            if len(keys) > 1:
                raise Violation("one place", f"Job {jid} is in {b' and '.join(keys).decode()}.")
        dead = frozenset(jid for jid, keys in places.items() if keys[0] == b"dead")
        if guiltless := dead & self._innocent - self._deleted_by_person():
            raise Violation("innocent", f"Job {min(guiltless)} is in the dead set.")
        self._check_names(state)
        self._check_marked(state, places)
        live = [jid for jid in places if jid not in dead]
        self._check_locks(state, places, live)
        self._check_cursors(state, places)
        fields = dict(state.get(_CANCELLED, ("hash", ()))[1])
        noted = frozenset(field.decode().removeprefix("jid:") for field in fields)
        return Look(places, leases, in_flight, dead, not live, noted)

    def _check_locks(
        self, state: dict[bytes, Frozen], places: dict[str, tuple[bytes, ...]], live: list[str]
    ) -> None:
        """Each job has its lock, and each lock its job."""
        for lock in set(self._locks.values()):
            found = dict(state.get(lock, ("hash", ()))[1])
            holder, newest = (found.get(name, b"").decode() for name in (b"jid", b"next_jid"))
            for jid in (jid for jid in live if self._locks.get(jid) == lock):
                # One that takes another's place leaves its lock at its start, which may be in vain.
                may_be_without = self._jobs[jid].how in ("replace", "debounce")
                if jid not in (holder, newest) and not may_be_without:
                    raise Violation("lock", f"Job {holder or 'none'} has that of job {jid}.")
            if found and holder not in live:
                raise Violation("free", f"Job {holder} is gone.")

    def _check_cursors(
        self, state: dict[bytes, Frozen], places: dict[str, tuple[bytes, ...]]
    ) -> None:
        for jid in self._jids:
            if jid not in places and _cursor(state, jid):
                raise Violation("cursor", f"That of job {jid} is left.")

    def steps(self, common: Common, of: str) -> None:
        """A job that has a cursor goes on with an item. Raises Violation."""
        jid, _, at = of.split()
        ghost, state = common.ghosts[self._jids.index(jid)], self._store.states[common.store]
        if int(at) < max(_cursor(state, jid), ghost.reached) and not ghost.excused:
            raise Violation("cursor", f"Job {jid} goes on with item {at}.")

    def _deleted_by_person(self) -> set[str]:
        """A person may kill any job."""
        has_killer = any("kill" in what for what, _ in self._world.person)
        return set(self._jids) if has_killer else set()

    def _check_names(self, state: dict[bytes, Frozen]) -> None:
        for key in state:
            for pattern, index, promise in (
                (_SUSPECTS, b"forkq:suspects", "index"),
                (_QUEUE, b"queues", "name"),
            ):
                kind, names = state.get(index, ("set", ()))
                is_refused = kind != "set" or (promise == "name" and "NOPERM" in self._world.faults)
                found = pattern.fullmatch(key)
                if found and found[1] not in names and not is_refused:
                    raise Violation(promise, f"That of {found[1].decode()} is missing.")

    def _check_marked(
        self, state: dict[bytes, Frozen], places: dict[str, tuple[bytes, ...]]
    ) -> None:
        named = dict(state.get(_MARKED, ("zset", ()))[1])
        for jid in self._expiring & places.keys():
            found = _OF_QUEUE.fullmatch(places[jid][0])
            if found and (found[1] or found[2]) not in named:
                raise Violation("marked", f"That of job {jid} is missing.")

    # What happens

    def has_moment(self, common: Common) -> bool:
        """Whether there is a job whose moment will come."""
        return any(
            ghost.seen and not ghost.left and not ghost.over
            for jid, ghost in zip(self._jids, common.ghosts, strict=True)
            if jid in self._expiring | self._debounced
        )

    def time_passed(self, common: Common) -> Common:
        """The moments have come at which the jobs expire that have been pushed, or may be replaced
        no more."""
        for at, jid in enumerate(self._jids):
            if jid in self._expiring | self._debounced and common.ghosts[at].seen:
                common = _with_ghost(common, at, over=True)
        return common

    def begins(self, common: Common, part: Part, of: str) -> Common:
        """A process begins to perform a job."""
        jid, *flags = of.split(" ")
        at = self._jids.index(jid)
        ghost = common.ghosts[at]
        if ghost.over and jid in self._expiring:
            raise Violation("expired", f"{part.name} runs job {jid}.")
        if "alone" in flags and part.nonce != "solo":
            raise Violation("alone", f"{part.name} runs job {jid}.")
        if ghost.well and not ghost.excused:
            raise Violation("once", f"{part.name} runs job {jid} again.")
        if jid in self._locks:
            self._check_order(common, jid)
            common = _with_ghost(common, at, begun=True)
        return _with_ghost(common, at, run="begun") if jid in self._expiring else common

    def check_beside(self, jid: str, other: str, part: Part) -> None:
        """Raises Violation if a job begins beside another one that must be alone."""
        if jid == other:
            raise Violation("one at a time", f"Job {jid} runs in {part.name}, too.")
        lock = self._locks.get(jid)
        may_overlap = self._jobs[jid].how in ("replace", "debounce")
        if lock and lock == self._locks.get(other) and not may_overlap:
            raise Violation("order", f"Job {other} runs in {part.name}.")

    def _check_order(self, common: Common, jid: str) -> None:
        """A job begins: no newer one that takes its place may have begun."""
        if self._jobs[jid].how != "latest":
            return
        for other, ghost in zip(self._jids, common.ghosts, strict=True):
            if ghost.begun and self._is_newer(common, other, jid):
                raise Violation("order", f"Job {jid} runs after job {other}.")

    def _is_newer(self, common: Common, other: str, jid: str) -> bool:
        """Whether the other one came to Redis later: a push may arrive after a later one."""
        is_later = self._ghost(common, other).arrived > self._ghost(common, jid).arrived
        return is_later and self._locks.get(other) == self._locks[jid]

    def _ghost(self, common: Common, jid: str) -> Ghost:
        return common.ghosts[self._jids.index(jid)]

    def _gives_way(self, common: Common, jid: str) -> bool:
        """Whether a newer job takes the place of this one."""
        return self._jobs[jid].gives_way and any(
            ghost.seen and self._is_newer(common, other, jid)
            for other, ghost in zip(self._jids, common.ghosts, strict=True)
        )

    def check_end(self, common: Common, *, has_fault: bool) -> None:
        """All jobs have ended. Raises Violation if the newest one has not run, or if not each job
        that has given way is counted."""
        if self._world.person:
            return
        look, replaced = self.look(common.store), 0
        for jid, ghost in zip(self._jids, common.ghosts, strict=True):
            has_run = ghost.well or jid in look.dead or (ghost.over and jid in self._expiring)
            if ghost.seen and not has_run and jid in self._locks:
                replaced += 1
                if not self._gives_way(common, jid):
                    raise Violation("last change", f"Job {jid} has not run.")
        counted = _counts(self._store.states[common.store])["replaced"]
        if counted != replaced and not has_fault:
            raise Violation("counted", f"{counted} are replaced, and it is {replaced}.")

    def ended(self, common: Common, of: str, how: str) -> Common:
        """A job ends: well, not well, or with its process."""
        jid = of.partition(" ")[0]
        at = self._jids.index(jid)
        if how in ("ends", "discards"):
            return _with_ghost(common, at, well=True)
        if how == "is cancelled":
            return _with_ghost(common, at, stopped=True)
        if how == "stops":
            return _with_ghost(common, at, reached=int(of.rsplit(maxsplit=1)[-1]) + 1)
        is_again = how in ("fails", "snoozes") and jid in self._expiring
        return _with_ghost(common, at, run="again") if is_again else common

    def fault(self, common: Common, identity: str) -> Common:
        """A fault hits a child: its jobs may run again."""
        owner = identity.encode() + b"/"
        for lease, jid in self.leases(common.store).items():
            if lease.startswith(owner) and jid in self._jids:
                common = _with_ghost(common, self._jids.index(jid), excused=True)
        return common

    def told(self, common: Common, request: Ask) -> None:
        """The pusher was told what became of a job."""
        if request.what in ("pushed", "not pushed", "duplicate"):
            ghost = common.ghosts[self._jids.index(request.of)]
            if ghost.seen != (request.what == "pushed"):
                raise Violation("told", f"Job {request.of}: {request.what}.")

    def served(self, before: int, common: Common, part: Part | None) -> Common:
        """The server has carried out a command of that process, or a late one. Raises Violation."""
        if before == common.store:
            return common
        seen, look = self.look(before), self.look(common.store)
        self._check_progress(before, common.store, look)
        common = self._with_new_leases(common, seen, look)
        name = part.name if part else "a late command"
        for at, jid in enumerate(self._jids):
            was, is_there = jid in seen.places, jid in look.places
            if was == is_there:
                continue
            ghost = common.ghosts[at]
            if is_there:
                if ghost.left and name != "a person":
                    raise Violation("no return", f"{name} brings job {jid} back.")
                common = self._arrived(common, at)
            else:
                common = _with_ghost(common, at, left=True)
        self._check_debounced(common, look)
        if name not in ("a person", "ruby"):
            self._check_ends(before, common, seen, look, name)
        if part is None or part.is_child:
            self._check_rules(before, seen, look)
            common = self._count_tokens(common, seen, look)
        return common

    def _arrived(self, common: Common, at: int) -> Common:
        ghost, arrived = common.ghosts[at], 0
        if self._jids[at] in self._locks:
            arrived = ghost.arrived or 1 + max(each.arrived for each in common.ghosts)
        return _with_ghost(common, at, seen=True, left=False, arrived=arrived)

    def _check_debounced(self, common: Common, look: Look) -> None:
        """Raises Violation if two debounced jobs of one lock wait for more pushes, or one without
        its lock."""
        waiting: dict[bytes, str] = {}
        for jid, ghost in zip(self._jids, common.ghosts, strict=True):
            has_place = jid in self._debounced and look.places.get(jid, (b"",))[0] == _SCHEDULE
            if not has_place or ghost.begun or ghost.over:
                continue
            other = waiting.setdefault(self._locks[jid], jid)
            if other != jid:
                raise Violation("debounced", f"Jobs {other} and {jid} wait.")
        state = self._store.states[common.store]
        for lock, jid in waiting.items():
            if dict(state.get(lock, ("hash", ()))[1]).get(b"jid") != jid.encode():
                raise Violation("lock", f"Job {jid} waits without its own.")

    def _check_progress(self, before: int, after: int, look: Look) -> None:
        """Raises Violation if the cursor of a job that is there has gone back."""
        for jid in look.places:
            was = _cursor(self._store.states[before], jid)
            if was > _cursor(self._store.states[after], jid):
                raise Violation("cursor", f"That of job {jid} was {was}.")

    def _with_new_leases(self, common: Common, seen: Look, look: Look) -> Common:
        """A job that is fetched has not begun."""
        for lease in look.leases.keys() - seen.leases.keys():
            if (jid := look.leases[lease]) in self._expiring:
                common = _with_ghost(common, self._jids.index(jid), run="")
        return common

    def _check_ends(self, before: int, common: Common, seen: Look, look: Look, name: str) -> None:
        """A job leaves Redis for a reason, and is counted under it."""
        counted = _counts(self._store.states[common.store])
        counted.subtract(_counts(self._store.states[before]))
        left = [jid for jid in self._jids if jid in seen.places and jid not in look.places]
        expired = cancelled = 0
        for jid in left:
            ghost = common.ghosts[self._jids.index(jid)]
            is_noted = ghost.stopped or jid in seen.cancelled
            if is_noted and counted["cancelled"] > cancelled:
                if ghost.well and not ghost.excused:
                    raise Violation("cancelled", f"{name} ends job {jid}, which has ended well.")
                cancelled += 1
                continue
            if not ghost.well and self._gives_way(common, jid):
                if jid in self._debounced and (ghost.over or seen.places[jid][0] != _SCHEDULE):
                    raise Violation("debounced", f"{name} ends job {jid}.")
                continue
            if not ghost.well and not counted["expired"]:
                raise Violation("nothing lost", f"{name} removes job {jid}.")
            if not ghost.well and not ghost.over and ghost.run != "again":
                raise Violation("in time", f"{name} ends job {jid}.")
            # One that has ended well, and of which Redis was not told, may still expire.
            expired += not ghost.well or (ghost.over and counted["expired"] > expired)
        due = Counter(
            expired=expired,
            discarded=sum(self._natures[jid] == "discards" for jid in left),
            snoozed=sum(self._has_snoozed(jid, seen, look) for jid in self._jids),
            cancelled=cancelled,
        )
        if any(counted[outcome] != due[outcome] for outcome in due):
            raise Violation("counted", f"{name} counts {dict(+counted)}, and it is {dict(+due)}.")

    def _has_snoozed(self, jid: str, seen: Look, look: Look) -> bool:
        was, is_there = seen.places.get(jid, (b"",))[0], look.places.get(jid, (b"",))[0]
        snoozes = self._natures[jid] == "snoozes"
        return snoozes and was.endswith(b":inflight") and is_there == _SCHEDULE

    def _count_tokens(self, common: Common, seen: Look, look: Look) -> Common:
        """Each job that was taken costs a token. One that is moved aside unrun, or has expired,
        gives it back."""
        for name in self._world.rates:
            queue, spent = name.encode(), name in common.spent
            new = _of_queue(look, queue) - _of_queue(seen, queue)
            if len(new) > (0 if spent else 1):
                raise Violation("rate", f"{len(new)} jobs of {name} were taken.")
            gone = {seen.leases[one] for one in _of_queue(seen, queue) - _of_queue(look, queue)}
            back = any(self._is_unrun(common, jid, name, look) for jid in gone)
            spent = bool(new) or (spent and not back)
            changed = common.spent | {name} if spent else common.spent - {name}
            common = common._replace(spent=changed)
            self._check_bucket(common, name)
        return common

    def _is_unrun(self, common: Common, jid: str, queue: str, look: Look) -> bool:
        """Whether a job without its lease was moved aside, or has ended, before it has begun."""
        if jid not in look.places:
            return jid in self._expiring and not common.ghosts[self._jids.index(jid)].run
        return KEYS.suspects(queue).encode() in look.places[jid]

    def _check_bucket(self, common: Common, name: str) -> None:
        """The bucket of a rate with one token has it, or has it not."""
        state = self._store.states[common.store]
        found = state.get(KEYS.bucket(name).encode())
        if found is not None:
            tokens = int(float(found[1].split()[0]))
            if tokens != (0 if name in common.spent else 1):
                raise Violation("token", f"The bucket of {name} has {tokens}.")

    def _check_rules(self, before: int, seen: Look, look: Look) -> None:
        """What a fetch has taken, it was allowed to take."""
        new = look.leases.keys() - seen.leases.keys()
        if not new:
            return
        state = self._store.states[before]
        queues = {look.places[look.leases[lease]][0] for lease in new if look.leases[lease]}
        for key in queues:
            found = _INFLIGHT.fullmatch(key)
            assert found is not None
            self._check_queue(found[1], state, look)

    def _check_queue(self, queue: bytes, state: dict[bytes, Frozen], look: Look) -> None:
        name = queue.decode()
        if queue in state.get(b"paused", ("set", ()))[1]:
            raise Violation("paused", f"A job of {name} was taken.")
        rules = self._world.rules.get(name)
        control = dict(state.get(KEYS.control(name).encode(), ("hash", ()))[1])
        limit: Any = control.get(b"limit", rules.limit if rules else None)
        if limit not in (None, b"none") and look.in_flight[queue] > int(limit):
            raise Violation("limit", f"{look.in_flight[queue]} jobs of {name} are in progress.")
        for other, theirs in self._world.rules.items():
            blocks = theirs.blocking and self._is_after(name, other)
            if blocks and look.in_flight.get(other.encode()):
                raise Violation("blocking", f"A job of {name} was taken, though {other} blocks it.")

    def _is_after(self, name: str, other: str) -> bool:
        order = list(self._world.queues)
        return order.index(name) > order.index(other)

    def check_sleeper(self, state: int, fetch: tuple[bytes, ...], part: Part) -> None:
        """Raises Violation if this fetch of a child that sleeps would bring a job."""
        reply = self._store.run(state, fetch).value
        if isinstance(reply, tuple) and len(reply) > 4:
            raise Violation("awake", f"{part.name} could take job {jid_of(reply[5])}.")


def _counts(state: dict[bytes, Frozen]) -> Counter[str]:
    """How many jobs have ended in each way."""
    counts: Counter[str] = Counter()
    for field, count in state.get(_ENDS, ("hash", ()))[1]:
        counts[field.rpartition(b"|")[2].decode()] += int(count)
    return counts


def _cursor(state: dict[bytes, Frozen], jid: str) -> int:
    """From which item on the job goes on; 0 if it has no cursor."""
    fields = dict(state.get(KEYS.iteration(jid).encode(), ("hash", ()))[1])
    return int(fields[b"c"]) if fields.get(b"c", b"null") != b"null" else 0


def _of_queue(look: Look, queue: bytes) -> set[bytes]:
    """The leases of a queue."""
    key = KEYS.inflight(queue.decode()).encode()
    return {lease for lease, jid in look.leases.items() if key in look.places.get(jid, ())}


def _with_ghost(common: Common, at: int, **changes: Any) -> Common:
    ghosts = common.ghosts
    ghost = ghosts[at]._replace(**changes)
    return common._replace(ghosts=(*ghosts[:at], ghost, *ghosts[at + 1 :]))
