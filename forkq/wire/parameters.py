"""The names of a job's parameters, which children publish: a payload has positions only.

By these names a process that has not imported the app knows which arguments are secret. The values
of arguments are never part of it.
"""

from __future__ import annotations

from typing import Final

import msgspec


class JobParameters(msgspec.Struct, frozen=True, gc=False):
    """``names`` of the parameters in order, "*name" for one that takes all further arguments.
    ``secret``: all arguments are, as the job's option ``secret`` says."""

    names: tuple[str, ...] = ()
    secret: bool = False

    def encode(self) -> bytes:
        """The parameters as the text that Redis keeps."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> JobParameters:
        """The parameters in a text that ``encode`` made. For any other text, which another program
        wrote, all arguments are secret."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ALL_SECRET


ALL_SECRET: Final = JobParameters(secret=True)
