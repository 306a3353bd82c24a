"""What becomes of bytes in Redis that are no job, when they are buried: docs/wire.md."""

from __future__ import annotations

import json
from typing import Final

from ..errors import ForkqError
from .payload import DEEPEST, LARGEST, beyond, dumps, new_jid
from .times import now

# The class of a buried payload that was JSON but no object.
MALFORMED: Final = "forkq.malformed"
_BEGINS_JSON: Final = '["-0123456789tfn/'


def wrap_malformed(raw: bytes, queue: str, error: ForkqError) -> bytes:
    """What to bury of a payload that is no job, because of ``error``. JSON that is no object would
    break Sidekiq's Dead page, so it becomes the argument of an object; others stay as they are."""
    if not _is_foreign_json(raw):
        return raw
    moment = now()
    return dumps(
        {
            "class": MALFORMED,
            "args": [raw.decode("utf-8", "replace")],
            "jid": new_jid(),
            "queue": queue,
            "retry": 0,  # "retry now" in a web UI buries it again
            "created_at": moment,
            "error_class": f"{type(error).__module__}.{type(error).__qualname__}",
            "error_message": str(error),
            "failed_at": moment,
        }
    )


def _is_foreign_json(raw: bytes) -> bool:
    """Whether a JSON parser may read it as another value than an object. The standard library's
    parser accepts more than msgspec (1e400, odd UTF-8); Ruby's also accepts comments and odd
    escapes."""
    text = raw.decode("utf-8", "replace").lstrip()
    if text[:1] in ("", "{"):
        return False
    if beyond(raw, LARGEST, DEEPEST) is not None:
        return text[0] in _BEGINS_JSON
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text[0] in _BEGINS_JSON and any(odd in text for odd in ("/*", "//", "\\"))
    except RecursionError:
        pass
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity: no JSON
