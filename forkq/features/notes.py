"""Notes: what must happen on another shard because of what has happened on this one. Values,
without I/O.

No script can change two servers. So the script in which a job ends writes a note in its own one
(``noted``), the clock that leads there carries it to the other (``clock/notes.py``), and then
deletes it. A clock that is killed between the two carries it again: an effect that is noted must
change nothing the second time. The notes for one shard arrive in the order in which they were
written. docs/internals.md, "The way of a note".
"""

from __future__ import annotations

import re
from typing import Final, get_args

import msgspec

from ..errors import ForkqError, MalformedPayload
from ..wire.keys import Keys
from ..wire.payload import encode
from .effects import Effect, Name

# The names of keys in a note are those without a prefix: the other shard has its own.
ANYWHERE: Final = Keys()
_PLACEHOLDERS: Final = re.compile(b"([\x01-\x1f])")
_NAMES: Final = frozenset(get_args(Name))
_DECODER: Final = msgspec.json.Decoder(tuple[str, str, tuple[str | int, ...], tuple[str, ...]])


def noted(keys: Keys, to: str, effect: Effect) -> Effect:
    """What notes ``effect``, whose keys are those of ``ANYWHERE``, for the shard ``to``."""
    return Effect("note", keys.notes, (to, text_of(effect)))


def text_of(effect: Effect) -> str:
    """An effect as it stands in a note."""
    return encode([*effect]).decode()


def due_text(payload: bytes, jid: str) -> bytes:
    """The note that pushes a job to another shard when its time has come. The bytes in the payload
    that no JSON has stay: a script puts something in their place."""
    inner = [
        part if _PLACEHOLDERS.fullmatch(part) else encode(part.decode())[1:-1]
        for part in _PLACEHOLDERS.split(payload)
    ]
    due = Effect("due", ANYWHERE.schedule, ("",), (ANYWHERE.pushed(jid),))
    return text_of(due).encode().replace(b'[""]', b'["' + b"".join(inner) + b'"]', 1)


def effect_in(text: bytes, prefix: str) -> Effect:
    """The effect of a note for a shard with that ``prefix``. Raises MalformedPayload for what is no
    note, and ForkqError for an effect that a newer forkq has noted."""
    try:
        name, key, arguments, more = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedPayload(f"this is no note of forkq: {error}") from None
    if name not in _NAMES:
        raise ForkqError(f"the effect {name!r} needs a newer forkq")
    rest = tuple(f"{prefix}{each}" for each in more)
    return Effect(name, f"{prefix}{key}", arguments, rest)  # type: ignore[arg-type]
