"""A job with its arguments, that is not pushed now: what ``j.s(...)`` returns. Any process."""

from __future__ import annotations

import msgspec

from .payload import Payload


class PreparedJob(msgspec.Struct, frozen=True):
    """A job with its arguments and its options, checked, to be pushed when its time has come: the
    callback of a batch, for example."""

    payload: Payload

    def __repr__(self) -> str:
        return f"<forkq prepared job {self.payload['class']}>"
