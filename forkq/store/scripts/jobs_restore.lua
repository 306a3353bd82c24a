-- Puts jobs back that were deleted a moment ago: a part of them, once.
--
-- KEYS  [1] the list that keeps them, score and member in turn   [2] the set or the list
--       [3] the set of queue names   [4] the list of the queue's suspects   [5] the set of queues with
--       suspects   [6] the queues with marked jobs   then those of the jobs' effects
-- ARGV  [1] 'set' or 'list', the type of KEYS[2]   [2] the queue, '' for a set
--       [3] how many entries the caller has found in the list; '' did not look
--       [4 ..] for each job there its effects (effects.lua)
-- Returns how many were put back, and how many of them lack their lock, since another job has it; -1 if
-- the list has changed meanwhile. Of a list, the last one that was deleted comes first, so that the
-- first one is fetched first. The score of a suspect is 'suspect', that of another job of a list ''.
--
-- A refusal leaves the jobs where they are kept: so they are removed there last. The LTRIM of nothing
-- is for a full server: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "jobs_move/suspects"
--- @include "marked"
--- @include "effects"

local function to_list(where, payload)
  note_if_marked(KEYS[6], ARGV[2], payload)
  if where == 'suspect' and add_suspect('RPUSH', KEYS[4], KEYS[5], ARGV[2], payload) then return end
  redis.call('RPUSH', KEYS[2], payload)
end

local kept = redis.call('LRANGE', KEYS[1], 0, -1)
if #kept == 0 then return { 0, 0 } end
if ARGV[3] ~= '' and tonumber(ARGV[3]) ~= #kept then return { -1, 0 } end
redis.call('LTRIM', KEYS[1], 0, -1)
local without_lock = 0
for i = #kept - 1, 1, -2 do
  local looks = look_at(ARGV[3 + (i + 1) / 2])
  if ARGV[1] == 'set' then
    redis.call('ZADD', KEYS[2], 'NX', kept[i], kept[i + 1])
    set_entry = { state_in(KEYS[2]), kept[i + 1] }
  else
    to_list(kept[i], kept[i + 1])
  end
  without_lock = without_lock + write(looks)
end
-- A damaged set of names must not keep the jobs here, from where they would go back once more.
if ARGV[1] == 'list' then redis.pcall('SADD', KEYS[3], ARGV[2]) end
redis.call('DEL', KEYS[1])
return { math.floor(#kept / 2), without_lock }
