"""A Redis whose states are values: each command or script leads from one state to the next.

The scripts are forkq's own, run by Lua 5.1 as in Redis. A state is a mapping from key to a frozen
value, in order, so that two equal states are equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from lupa import lua51  # type: ignore[import-untyped]

from forkq.store import scripts
from forkq.store.scripts import Script

from .commands import (
    ADDITIONS,
    COMMANDS,
    NOW,
    READS,
    Keyspace,
    Ok,
    Refused,
    Scores,
    Value,
    as_sent,
)

# A type's letter, and its contents in order.
Frozen: TypeAlias = "tuple[str, Any]"
State: TypeAlias = "tuple[tuple[bytes, Frozen], ...]"
# What the server refuses: nothing, additions (it is full), all writes (it is a replica), or to name
# a queue (the user may not).
Refusal: TypeAlias = Literal["", "OOM", "READONLY", "NOPERM"]
REFUSALS: Final = ("OOM", "READONLY", "NOPERM")

_OOM: Final = "OOM command not allowed when used memory > 'maxmemory'."
_NOPERM: Final = "NOPERM this user has no permissions to run the 'sadd' command"
_READONLY: Final = "READONLY You can't write against a read only replica."


# What a script sees in the place of JSON's null.
_NULL: Final = object()


class Reply(NamedTuple):
    """What a command led to: the number of the next state, its reply (an error is a ``Refused``;
    lists are tuples), the keys whose contents have changed, and all that it looked at."""

    state: int
    value: Any
    changed: frozenset[bytes]
    seen: frozenset[bytes]


def every_script() -> dict[str, Script]:
    """forkq's scripts by name."""
    found = vars(scripts).values()
    return {each.name: each for each in found if isinstance(each, Script)}


def freeze(value: Value) -> Frozen:
    """The value of a key, as it stands in a state."""
    if isinstance(value, Scores):
        return "zset", tuple(value.ranked())
    if isinstance(value, dict):
        return "hash", tuple(sorted(value.items()))
    if isinstance(value, set):
        return "set", tuple(sorted(value))
    return ("string", value) if isinstance(value, bytes) else ("list", tuple(value))


def thaw(frozen: Frozen) -> Value:
    """The value again, to be changed."""
    kind, contents = frozen
    kinds: dict[str, Callable[[Any], Value]] = {
        "zset": Scores, "hash": dict, "set": set, "list": list, "string": bytes
    }  # fmt: skip
    return kinds[kind](contents)


@dataclass(slots=True)
class _Run:
    """One command that is being carried out. ``seen``: the keys that it has used; ``touched``:
    those that it may have changed; ``has_written``: it has given a command that writes."""

    keyspace: Keyspace
    refusal: Refusal
    seen: set[bytes] = field(default_factory=set)
    touched: set[bytes] = field(default_factory=set)
    has_written: bool = False

    def do(self, name: bytes, args: Sequence[bytes]) -> Any:
        """One command. Raises Refused."""
        handler, keys = COMMANDS[name]
        self.seen.update(args if keys < 0 else args[:keys])
        if name == b"TIME":
            self.seen.add(NOW)
        if name not in READS:
            if self.refusal == "READONLY":
                raise Refused(_READONLY)
            if self.refusal == "OOM" and name in ADDITIONS and not self.has_written:
                raise Refused(_OOM)
            if self.refusal == "NOPERM" and (name, args[0]) == (b"SADD", b"queues"):
                raise Refused(_NOPERM)
            self.has_written = True
            self.touched.update(args if keys < 0 else args[:keys])
        return handler(self.keyspace, args)


class Store:
    """Carries out commands. A state is known by its number. ``texts``: those of scripts that are
    changed, by name."""

    def __init__(self, texts: dict[str, bytes] | None = None) -> None:
        self._lua = Lua()
        known = every_script()
        self._texts = {
            script.sha: (texts or {}).get(name, script.text) for name, script in known.items()
        }
        self._scripts: dict[bytes, Any] = {}  # compiled: a world uses few of them
        self.names: dict[bytes, str] = {script.sha: name for name, script in known.items()}
        self.states: list[dict[bytes, Frozen]] = []
        self._numbers: dict[State, int] = {}
        self._known: dict[tuple[int, tuple[bytes, ...], Refusal], Reply] = {}
        self.empty = self.number_of({})

    @property
    def steps(self) -> int:
        """How many commands were carried out."""
        return len(self._known)

    def known(self) -> list[tuple[tuple[int, tuple[bytes, ...], Refusal], Reply]]:
        """Each step that was carried out: from which state, which command, what the server refuses;
        and what it led to."""
        return list(self._known.items())

    def number_of(self, state: dict[bytes, Frozen]) -> int:
        """The number of a state."""
        key = tuple(sorted(state.items()))
        if key not in self._numbers:
            self._numbers[key] = len(self.states)
            self.states.append(dict(key))
        return self._numbers[key]

    def run(self, state: int, command: tuple[bytes, ...], refusal: Refusal = "") -> Reply:
        """Carries out one command, of texts alone. It is computed once."""
        asked = (state, command, refusal)
        found = self._known.get(asked)
        if found is None:
            found = self._known[asked] = self._compute(state, command, refusal)
        return found

    def _compute(self, state: int, command: tuple[bytes, ...], refusal: Refusal) -> Reply:
        before = self.states[state]
        run = _Run({key: thaw(value) for key, value in before.items()}, refusal)
        reply = _tupled(self._reply(run, command))
        after = dict(before)
        for key in run.touched:
            if key in run.keyspace:
                after[key] = freeze(run.keyspace[key])
            else:
                after.pop(key, None)
        changed = frozenset(key for key in run.touched if after.get(key) != before.get(key))
        then = self.number_of(after) if changed else state
        return Reply(then, reply, changed, frozenset(run.seen))

    def _reply(self, run: _Run, command: tuple[bytes, ...]) -> Any:
        try:
            if command[0] == b"EVALSHA":
                return self._run_script(run, command)
            return as_sent(command, run.do(command[0], command[1:]))
        except Refused as error:
            return error

    def _run_script(self, run: _Run, command: tuple[bytes, ...]) -> Any:
        count = int(command[2])
        keys, arguments = command[3 : 3 + count], command[3 + count :]
        return self._lua.run(self._script(command[1]), keys, arguments, run)

    def _script(self, sha: bytes) -> Any:
        if sha not in self._scripts:
            self._scripts[sha] = self._lua.compile(self._texts[sha])
        return self._scripts[sha]


class Lua:
    """Runs scripts. To them ``redis`` is as on a server."""

    def __init__(self) -> None:
        self._runtime = lua51.LuaRuntime(encoding=None)
        self._table = self._runtime.table_from
        self._type = self._runtime.globals()[b"type"]
        self._run: _Run | None = None
        redis = {b"call": self._call, b"pcall": self._pcall}
        self._runtime.globals()[b"redis"] = self._table(redis)
        self._runtime.globals()[b"cjson"] = self._table({b"decode": self._decoded})
        self._compile = self._runtime.eval(
            b"function(text) return assert(loadstring(text, 'script')) end"
        )

    def compile(self, text: bytes) -> Any:
        """A script as a function of its keys and arguments."""
        return self._compile(b"local KEYS, ARGV = ... " + text)

    def run(self, script: Any, keys: Sequence[bytes], arguments: Sequence[bytes], run: _Run) -> Any:
        """The reply of a script. Raises Refused."""
        self._run = run
        try:
            return self._from_lua(script(self._table(keys), self._table(arguments)))
        except lua51.LuaError as error:
            raise Refused(f"ERR {error}") from error
        finally:
            self._run = None

    def _call(self, name: bytes, *args: Any) -> Any:
        assert self._run is not None
        return self._to_lua(self._run.do(name.upper(), [_text(arg) for arg in args]))

    def _pcall(self, name: bytes, *args: Any) -> Any:
        try:
            return self._call(name, *args)
        except Refused as error:
            return self._table({b"err": str(error).encode()})

    def _decoded(self, text: bytes) -> Any:
        return self._json_to_lua(json.loads(text))

    def _json_to_lua(self, value: Any) -> Any:
        if value is None:
            return _NULL
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, list):
            return self._table([self._json_to_lua(each) for each in value])
        if isinstance(value, dict):
            pairs = ((name.encode(), self._json_to_lua(each)) for name, each in value.items())
            return self._table(dict(pairs))
        return value

    def _to_lua(self, reply: Any) -> Any:
        if isinstance(reply, Ok):
            return self._table({b"ok": reply.text})
        if isinstance(reply, list):
            return self._table([self._to_lua(each) for each in reply])
        return False if reply is None else reply

    def _from_lua(self, value: Any) -> Any:
        if value is True:
            return 1
        if value is False or value is None:
            return None
        if isinstance(value, bytes | int):
            return value
        if isinstance(value, float):
            return int(value)
        if value[b"err"] is not None:
            raise Refused(value[b"err"].decode())
        if value[b"ok"] is not None:
            return Ok(value[b"ok"])
        return [self._element(each) for each in _until_nil(value)]

    def _element(self, value: Any) -> Any:
        """An error in a list is one of its elements."""
        try:
            return self._from_lua(value)
        except Refused as error:
            return error


def _until_nil(table: Any) -> Iterable[Any]:
    """A table's values up to the first that is missing, as Redis reads them."""
    at = 1
    while (value := table[at]) is not None:
        yield value
        at += 1


def _tupled(value: Any) -> Any:
    return tuple(_tupled(each) for each in value) if isinstance(value, list) else value


def _text(argument: Any) -> bytes:
    """An argument of a command in a script: numbers as Redis writes them."""
    if isinstance(argument, bytes):
        return argument
    return b"%d" % argument if argument == int(argument) else b"%.17g" % argument


def packed(command: Sequence[Any]) -> tuple[bytes, ...]:
    """A command of forkq's, as texts."""
    return tuple(
        part if type(part) is bytes else part.encode() if type(part) is str else repr(part).encode()
        for part in command
    )
