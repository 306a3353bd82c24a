-- Does what the notes of another shard say (features/notes.py), for the clock that carries them.
--
-- KEYS  [1] which clock carries the notes of that shard here   then those of the effects
-- ARGV  [1] the clock that carries these   [2] for how many seconds that is known
--       [3 ..] for each note its effect (effects.lua)
-- Returns 0 if another clock carries the notes by now, and -1 if no clock is known to: nothing is done. Else for each
-- note 1, a list after damage (see end.lua), or the error of one that says what no effect does.
--
-- The EXPIRE is the first write: a server that takes no writes refuses it, and with it all notes. Behind it a full
-- server takes the rest.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "effects"

local carrier = redis.pcall('GET', KEYS[1])
if carrier ~= ARGV[1] then return type(carrier) == 'string' and 0 or -1 end
redis.call('EXPIRE', KEYS[1], ARGV[2])

local function obey(text)
  write(look_at(text))
  return with_damaged_keys(1)
end

local replies = {}
for i = 3, #ARGV do
  local is_done, reply = pcall(obey, ARGV[i])
  replies[#replies + 1] = is_done and reply or { err = type(reply) == 'table' and reply.err or reply }
end
return replies
