"""A script makes no key, and says nothing that Lua 5.4 reads otherwise.

This test reads the texts. In tests/redis, tests/support/declared_keys.py looks at each key that a
script touches.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forkq.store import scripts
from forkq.store.scripts import Script

SCRIPTS = [value for value in vars(scripts).values() if isinstance(value, Script)]
FILES = sorted(Path(scripts.__file__).parent.rglob("*.lua"))
_COMMENT = re.compile(r"--[^\n]*")
# A command by its name, or by a variable, after what sends it; then its key.
_COMMAND = re.compile(
    r"\b(?:p?call|read|added|is_refused)\(\s*(?:'(?P<name>[A-Z]+)'|[\w.]+ == [^,]+|push)\s*"
    r"(?:,\s*(?P<key>(?:[^,()\[\]]|\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]|\([^()]*\))+))?"
)
_ENTRY = re.compile(r"KEYS\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]")
_NAME = re.compile(r"(?:place\.)?[a-z_]\w*")  # `place`: see ticket.lua
_COMBINED = re.compile(rf"\.\.\s*{_ENTRY.pattern}|{_ENTRY.pattern}\s*(?:\.\.|:(?!match\())")
# In Lua 5.4 a quotient is a float, which a text shows with a point, and so are 1e3 and 2 ^ 3.
_LUA_5_4 = re.compile(
    r"(?<!\.)\bunpack\((?![^\n]*-- )|\bloadstring\b|\bsetfenv\b|\bgetn\b|\bmath\.pow\b"
    r"|\.\.[^,\n]*/|/\s*[\w.]+\s*\.\.|return [^\n]*/"
)
_FLOAT_IS_MEANT = ("per_second", "math.floor(", "math.ceil(", "only compared")


def made_keys(text: str) -> list[str]:
    """What a script has in the place of a key that is neither an entry of KEYS nor a variable, and
    each key of KEYS from which it makes another."""
    code = _COMMENT.sub("", text)
    keys = [m["key"].strip() for m in _COMMAND.finditer(code) if m["key"] and m["name"] != "TIME"]
    bound = set(re.findall(rf"local (\w+) = {_ENTRY.pattern}\n", code))
    combined = [m[0] for m in _COMBINED.finditer(code)]
    for name in bound:
        combined += re.findall(rf"\b{name} \.\.[^\n]*|\.\. {name}\b|\b{name}:(?!match\()\w+", code)
    wrong = [key for key in keys if not (_ENTRY.fullmatch(key) or _NAME.fullmatch(key))]
    assigned = [
        f"{name} = {value}"
        for name in {key for key in keys if _NAME.fullmatch(key)}
        for value in re.findall(rf"\b{name} = ([^\n]+)", code)
        if ".." in value or "'" in value.replace("''", "")
    ]
    return [*wrong, *combined, *assigned]


def differences(text: str) -> list[str]:
    """The lines of a script that mean something else in Lua 5.4."""
    found = []
    has_both = "table.unpack or unpack" in text
    for line in text.splitlines():
        code = _COMMENT.sub("", line).replace("table.unpack or unpack", "")
        match = _LUA_5_4.search(code)
        if match and not (match[0].startswith("unpack") and has_both):
            found += [] if any(each in line for each in _FLOAT_IS_MEANT) else [line.strip()]
    return found


def test_a_script_makes_no_key() -> None:
    found = {path.stem: made_keys(path.read_text()) for path in FILES}
    assert len(found) > 30
    assert {name: keys for name, keys in found.items() if keys} == {}


@pytest.mark.parametrize(
    "line",
    [
        "redis.call('DEL', KEYS[1] .. 'full')",
        "redis.call('DEL', 'queue:' .. ARGV[1])",
        "redis.pcall('HSET', 'paused', name, 1)",
        "local mark = KEYS[1]:sub(1, -9)\n",
        "local list = KEYS[2]\nredis.call('LLEN', list .. ':x')",
        "local key = 'queue:' .. name\nredis.call('LLEN', key)",
        "read('HVALS', key_of(queue, 'turn'))",
        "call('SET', KEYS[at[queue] + 1] .. 'x', 1)",
    ],
)
def test_a_made_key_is_found(line: str) -> None:
    assert made_keys(line)


def test_a_script_means_the_same_in_lua_5_4() -> None:
    found = {script.name: differences(script.text.decode()) for script in SCRIPTS}
    assert len(found) > 30
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["call('HDEL', key, unpack(names))", "x = owner .. (a + b) / 10", "return #kept / 2"]
)
def test_what_lua_5_4_reads_otherwise_is_found(line: str) -> None:
    assert differences(line)
