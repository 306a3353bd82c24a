"""Each script that a test runs in its own process fails if it touches a key that is not in KEYS.

Redis Cluster, Dragonfly and some managed servers allow a script no key but those in KEYS. A single
Redis allows any, so that nothing else in a test would notice.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from forkq.store import scripts

# One line, so that the lines of a script keep their numbers in its errors.
PROLOGUE: Final = b"""\
local redis = (function(real, keys)
  local declared, of_keys_only = {}, { EXISTS = true, DEL = true, UNLINK = true }
  for _, key in ipairs(keys) do declared[key] = true end
  local function check(command, ...)
    if command == 'TIME' then return end
    for i = 1, of_keys_only[command] and select('#', ...) or 1 do
      local key = select(i, ...)
      if not declared[key] then error('the script makes the key ' .. tostring(key), 0) end
    end
  end
  local function call(...) check(...) return real.call(...) end
  local function pcall(...) check(...) return real.pcall(...) end
  return setmetatable({ call = call, pcall = pcall }, { __index = real })
end)(redis, KEYS)
""".replace(b"\n", b" ")


def guard(script: scripts.Script) -> None:
    """From now on this process sends ``script`` with the check before it."""
    if script.text.startswith(PROLOGUE):
        return
    text = PROLOGUE + script.text
    msgspec.structs.force_setattr(script, "text", text)
    sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    msgspec.structs.force_setattr(script, "sha", sha)


def guard_all() -> None:
    """All scripts of forkq."""
    for value in vars(scripts).values():
        if isinstance(value, scripts.Script):
            guard(value)
