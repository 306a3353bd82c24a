"""The Lua files: each script compiles on the real server, no file and no function is long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from forkq.store import scripts
from forkq.store.scripts import Script
from tests.support.declared_keys import PROLOGUE

FOLDER = Path(scripts.__file__).parent
FILES = sorted(FOLDER.rglob("*.lua"))
SCRIPTS = [value for value in vars(scripts).values() if isinstance(value, Script)]
LONGEST_FILE = 120
LONGEST_FUNCTION = 40

# Comments and strings come first, so that no word in them counts.
TOKENS = re.compile(
    r"--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|"
    r"\b(?P<opens>function|if|do|repeat)\b|\b(?P<closes>end|until)\b"
)


def is_part(line: str) -> bool:
    """Whether a function begins there that has a file in it, so that this is defined when it is
    needed (effects.lua)."""
    return line.startswith("function define.")


def functions(text: str) -> Iterator[tuple[int, int]]:
    """The first line of each function, and how many lines it has."""
    open_blocks: list[tuple[str, int]] = []
    for token in TOKENS.finditer(text):
        line = 1 + text.count("\n", 0, token.start())
        if token["opens"]:
            open_blocks.append((token["opens"], line))
        elif token["closes"]:
            opener, first = open_blocks.pop()
            if opener == "function" and not is_part(text.splitlines()[first - 1]):
                yield first, line - first + 1
    assert not open_blocks


def test_the_server_compiles_each_script_under_our_sha(redis: Redis) -> None:
    for script in SCRIPTS:
        assert redis.script_load(script.text) == script.sha.decode(), script.name


def test_the_server_refuses_a_script_that_does_not_compile(redis: Redis) -> None:
    """So the test above would see a mistake."""
    with pytest.raises(ResponseError, match="compiling"):
        redis.script_load(b"if true then return 1")


def test_no_lua_function_is_long_once_the_script_is_put_together() -> None:
    for script in SCRIPTS:
        long = [f for f in functions(script.text.decode()) if f[1] > LONGEST_FUNCTION]
        assert long == [], script.name


def test_no_lua_file_is_long() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    assert [path.name for path, number in lines.items() if number > LONGEST_FILE] == []


def test_every_lua_file_is_part_of_a_script() -> None:
    used = b"\n".join(script.text for script in SCRIPTS)
    unused = [path.name for path in FILES if path.read_bytes().splitlines()[0] not in used]
    assert unused == []


def test_a_script_that_makes_a_key_fails_in_these_tests(redis: Redis) -> None:
    """So each test that runs a script sees it."""
    text = PROLOGUE + b"return redis.call('DEL', KEYS[1] .. ':mark')"
    with pytest.raises(ResponseError, match="makes the key queue:q:mark"):
        redis.eval(text.decode(), 1, "queue:q")
    assert [script.name for script in SCRIPTS if not script.text.startswith(PROLOGUE)] == []


def test_no_include_is_left_unresolved() -> None:
    assert [script.name for script in SCRIPTS if b"@include" in script.text] == []


def test_functions_are_measured_from_their_first_line_to_their_end() -> None:
    text = """local function a()
      for i = 1, 2 do if i then repeat until x end end -- end
      local b = function() return 'end' end
    end
    """
    assert list(functions(text)) == [(3, 1), (1, 4)]
