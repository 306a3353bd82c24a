"""What a job remembers of its steps, as one hash in Redis says it: values, without I/O.

The hash ``forkq:steps:JID`` has a field for each step, by its name: a RememberedStep as JSON. A job
that has such a hash has ``forkq.needs.steps`` in its payload, so that the hash goes with the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ...errors import InvalidJob, shown
from ...wire.keys import Keys
from ...wire.payload import encode
from ...wire.times import now
from ..effects import NONE, Effect
from ..iterable.parts import Fate
from ..results.parts import problem_of, returned

STEPS: Final = "steps"
WAITS: Final = "waits"
# The lowest version of forkq's payloads whose children know the need.
VERSION: Final = 7
# Seconds for which steps are kept after the last change: as long as the dead set keeps a job.
KEPT_FOR: Final = 180 * 86_400
# How many steps one job remembers, and how many bytes of JSON they have together.
MOST: Final = 1000
MOST_BYTES: Final = 4 << 20
# Characters of a name: a key for a payment provider has the jid, too, and 255 are their most.
LONGEST_NAME: Final = 200
# Seconds for which an event is kept after the last job has waited for it.
_GRACE: Final = 86_400
# For how many seconds a signal stays for later waits, and how many bytes of JSON its data has.
STAYS_FOR: Final = 30 * 86_400.0
MOST_DATA: Final = 64 << 10
_LONGEST_EVENT: Final = 100
# A signal, and a job that waits, as scripts read them in an event (store/scripts/signal.lua).
_SIGNAL: Final = re.compile(rb"(\d+\.?\d*) (\d+\.?\d*) (\d) ")
_WAITER: Final = re.compile(rb"(\d+\.?\d*) (\d+\.?\d*) \d+ ")
TOO_MANY: Final = (
    f"the job has more than {MOST:,} steps, or these have more than {MOST_BYTES >> 20} MiB of JSON "
    "together"
)


class Signal(msgspec.Struct, frozen=True):
    """A signal that has come: when (epoch seconds), and with which data."""

    at: float
    data: Any = None


class RememberedStep(msgspec.Struct, frozen=True):
    """One step. ``at``: since when it is done, or since when the job sleeps or waits (epoch
    seconds). ``value``: what it has returned; ``problem``: why that is not kept. ``until``: when a
    sleep is over, or a wait that has not ended. ``event``: for which a wait waits. ``signal``: that
    has ended it; ``timed_out``: none has."""

    at: float
    value: Any = None
    problem: str = ""
    until: float = 0.0
    event: str = ""
    signal: Signal | None = None
    timed_out: bool = False

    @property
    def kind(self) -> str:
        """What the job has called: "step", "sleep" or "wait_for"."""
        if self.event or self.signal or self.timed_out:
            return "wait_for"
        return "sleep" if self.until else "step"


class Pause(NamedTuple):
    """A job sleeps at the step ``name``, or waits there for the ``event``. ``remembered``: what is
    remembered of that; ``since``, ``until``: epoch seconds."""

    name: str
    remembered: bytes
    since: float
    until: float
    event: str = ""


class SignalWait(NamedTuple):
    """A job has come to a wait for the ``event``, at the step ``name``, for so many ``seconds`` at
    most. ``begun``: what is remembered of it, if it has waited before."""

    name: str
    event: str
    seconds: float
    begun: RememberedStep | None = None

    def times(self) -> tuple[str, str, str]:
        """Since when and until when it waits (epoch seconds), and for how long."""
        if self.begun is None:
            return "", "", f"{self.seconds:.6f}"
        return f"{self.begun.at:.6f}", f"{self.begun.until:.6f}", ""

    def pause(self) -> Pause:
        """The pause of the job, if the signal has not come."""
        if self.begun is None:
            return pause(self.name, now() + self.seconds, self.event)
        return pause(self.name, self.begun.until, self.event, self.begun.at)


_decoder: Final = msgspec.json.Decoder(dict[str, Any])


def check_name(name: object) -> str:
    """The name of a step. Raises InvalidJob for what is none."""
    if type(name) is not str or not name.strip() or len(name) > LONGEST_NAME:
        raise InvalidJob(
            f"a step is called {shown(name)}: give it a name of 1 to {LONGEST_NAME} characters, "
            'such as "charge"'
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidJob(f"the name {shown(name)} of a step is no text that UTF-8 has") from None
    return name


def event_of(event: object, key: object) -> str:
    """The name of an event and its key together. Raises InvalidJob for what is none."""
    if type(event) is not str or not event.strip() or len(event) > _LONGEST_EVENT or ":" in event:
        raise InvalidJob(
            f"an event is called {shown(event)}: give it a name of 1 to {_LONGEST_EVENT} "
            'characters without a colon, such as "approved"'
        )
    if not (key is None or type(key) in (int, str)) or len(str(key)) > _LONGEST_EVENT:
        raise InvalidJob(
            f"the key of the event {shown(event)} is {shown(key)}: give a whole number or text of "
            f"at most {_LONGEST_EVENT} characters, such as the id of an order"
        )
    return check_name(event if key is None else f"{event}:{key}")


def data_of(event: str, data: Any) -> bytes:
    """The data of a signal as JSON. Raises InvalidJob for what is none, or too large."""
    if problem := problem_of(data, "data", "send"):
        raise InvalidJob(f"the signal {shown(event)}: {problem}")
    text = encode(data)
    if len(text) > MOST_DATA:
        raise InvalidJob(
            f"the data of the signal {shown(event)} has {len(text):,} bytes of JSON, and the most "
            f"is {MOST_DATA:,}: send an id, and load the rest in the job"
        )
    return text


def is_for_one(signal: bytes) -> bool:
    """Whether one job only gets a signal, as its event has it (store/scripts/signal.lua)."""
    found = _SIGNAL.match(signal)
    return found is not None and found[3] == b"1"


def key_of(jid: str, name: str) -> str:
    """What to hand to another service, so that it does once what this step asks twice."""
    return f"{jid}:{name}"


def done(value: Any) -> bytes:
    """What is remembered of a step that has returned ``value``."""
    kept = returned(value)
    if "error" in kept:
        kept = {"problem": kept["error"].message}
    return encode({"at": now(), **kept})


def done_without_value() -> bytes:
    """What is remembered of a step for whose value there is no room."""
    return encode({"at": now(), "problem": TOO_MANY})


def pause(name: str, until: float, event: str = "", since: float = 0.0) -> Pause:
    """A pause at the step ``name``, from now on, or ``since`` then. The text begins with ``until``:
    so scripts see that it goes on."""
    since = since or now()
    kept = {"until": until, "at": since, **({"event": event} if event else {})}
    return Pause(name, encode(kept), since, until, event)


def waiting_for(needs: Mapping[str, Any], pause: Pause) -> dict[str, Any]:
    """The needs of a job in this pause: the event for which it waits, so that each end
    of it takes the job out of those that wait."""
    kept = {name: need for name, need in needs.items() if name != WAITS}
    return {**kept, WAITS: pause.event} if pause.event else kept


def wait_no_more(needs: dict[str, Any]) -> None:
    """The job has come to its turn: if it is scheduled for another reason than a wait, no page says
    that it waits for a signal."""
    needs.pop(WAITS, None)


def event_in(needs: Mapping[str, Any]) -> str:
    """The event for which a job with these needs waits; "" if it waits for none."""
    found = needs.get(WAITS)
    return found if type(found) is str else ""


def since_in(waiter: bytes) -> float | None:
    """Since when a job waits of which an event says this (epoch seconds); None if that cannot be
    read."""
    found = _WAITER.match(waiter)
    return float(found[1]) if found else None


def gets(waiter: bytes, signal: bytes) -> bool:
    """Whether a job gets the ``signal`` of which an event says this: whether it waits at a moment
    at which that stands."""
    found, sent = _WAITER.match(waiter), _SIGNAL.match(signal)
    if found is None or sent is None:
        return False
    return float(sent[2]) >= float(found[1]) and float(sent[1]) <= float(found[2])


def read(raw: bytes) -> RememberedStep:
    """What is remembered of one step. Raises InvalidJob for what another program has written: to
    run the step again would repeat what is done."""
    try:
        found = _decoder.decode(raw)
        return msgspec.convert(found, RememberedStep)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidJob(f"what it remembers of a step cannot be read: {error}") from None


def read_all(reply: Mapping[bytes, bytes]) -> dict[str, RememberedStep]:
    """What is remembered of all steps, by name, in the order in which they were done. Raises
    InvalidJob."""
    found = {
        name.decode("utf-8", "surrogateescape"): read(raw) for name, raw in reply.items() if name
    }
    return dict(sorted(found.items(), key=lambda item: item[1].at))


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, jid: str, delay: float
) -> tuple[Effect, ...]:
    """What becomes of the steps of the job ``jid``. ``delay``: in how many seconds it is due."""
    if STEPS not in needs or not jid or fate in ("kept", "by TTL"):
        return NONE
    event = event_in(needs) if fate in ("deleted", "held long") else ""
    unwait = (Effect("unwait", keys.event(event), (jid,)),) if event else NONE
    if fate == "deleted":
        return (*unwait, Effect("forget", keys.steps(jid)))
    seconds = round(KEPT_FOR + max(0.0, delay))
    return (*unwait, Effect("keep", keys.steps(jid), (seconds,)))


def pause_effects(keys: Keys, jid: str, pause: Pause, delay: float) -> tuple[Effect, ...]:
    """What happens together with the end of a run of the job ``jid`` that sleeps, or waits, for so
    many seconds."""
    asleep = (pause.name, pause.remembered.decode(), round(KEPT_FOR + max(0.0, delay)))
    if not pause.event:
        return (Effect("asleep", keys.steps(jid), asleep),)
    times = (f"{pause.since:.6f}", f"{pause.until:.6f}", round(_GRACE + max(0.0, delay)))
    more = (keys.steps(jid), keys.schedule)
    return (Effect("wait", keys.event(pause.event), (*asleep, jid, *times), more),)
