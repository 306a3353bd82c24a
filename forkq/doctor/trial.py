"""A task for a server: a call of a script, and the reply that forkq needs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..store.connection import Call, Command


class Trial(NamedTuple):
    """A call or a command, and the reply that it must get: a value, or a function that says whether
    the reply is right. Without an ``expected`` any reply will do, but an error."""

    call: Call | Command
    expected: Any = ...

    @property
    def name(self) -> str:
        """The script, or the command."""
        return self.call.script.name if isinstance(self.call, Call) else str(self.call[0])

    @property
    def is_script(self) -> bool:
        """Whether it calls one."""
        return isinstance(self.call, Call)

    @property
    def keys(self) -> list[Any]:
        """The keys that it may make."""
        return list(self.call.keys) if isinstance(self.call, Call) else [self.call[1]]

    def problem(self, reply: Any) -> str:
        """What is wrong with the reply; "" if nothing is."""
        if isinstance(reply, Exception):
            return str(reply)
        if callable(self.expected):
            return "" if self.expected(reply) else f"unexpected reply {reply!r}"
        if self.expected is ... or reply == self.expected:
            return ""
        return f"the reply is {reply!r}, not {self.expected!r}"
