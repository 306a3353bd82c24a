"""What a job remembers of its steps, as one hash in Redis says it: values, without I/O.

The hash ``forkq:steps:JID`` has a field for each step, by its name: a RememberedStep as JSON. A job
that has such a hash has ``forkq.needs.steps`` in its payload, so that the hash goes with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...errors import InvalidJob, shown
from ...wire.keys import Keys
from ...wire.payload import encode
from ...wire.times import now
from ..effects import NONE, Effect
from ..iterable.parts import Fate
from ..results.parts import returned

STEPS: Final = "steps"
# The lowest version of forkq's payloads whose children know the need.
VERSION: Final = 7
# Seconds for which steps are kept after the last change: as long as the dead set keeps a job.
KEPT_FOR: Final = 180 * 86_400
# How many steps one job remembers, and how many bytes of JSON they have together.
MOST: Final = 1000
MOST_BYTES: Final = 4 << 20
# Characters of a name: a key for a payment provider has the jid, too, and 255 are their most.
LONGEST_NAME: Final = 200
TOO_MANY: Final = (
    f"the job has more than {MOST:,} steps, or these have more than {MOST_BYTES >> 20} MiB of JSON "
    "together"
)


class RememberedStep(msgspec.Struct, frozen=True):
    """One step that is done. ``at``: since when (epoch seconds); ``value``: what it has returned;
    ``problem``: why that is not kept."""

    at: float
    value: Any = None
    problem: str = ""


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
    if fate == "deleted":
        return (Effect("forget", keys.steps(jid)),)
    return (Effect("keep", keys.steps(jid), (round(KEPT_FOR + max(0.0, delay)),)),)
