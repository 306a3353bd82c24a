-- Returns an iterable job that has stopped between two items to its queue, together with its cursor.
--
-- KEYS  [1] the set of queue names   [2] the list of its queue   [3] in-flight hash of its queue
--       [4] the mark of those that wait for the end of its jobs   [5] the cursor   [6] the queues with
--       marked jobs   then those of its effects
-- ARGV  [1] lease   [2] the new payload   [3] head or tail of the queue   [4] seconds until the cursor
--       expires   [5] its effects (effects.lua)   [6 ..] fields of the cursor, each with its value; none: it stays
--       as it is
-- Returns 1, or 0 if the lease is gone: another process owns the job now. After damage a list of 1 and of
--         the keys of features that hold another type.
--
-- The lease is removed last, and the HDEL of nothing comes first: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "marked"
--- @include "effects"

if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return 0 end
local asked = look_at(ARGV[5])
redis.call('HDEL', KEYS[3], '')
local saved = #ARGV > 5 and redis.pcall('HSET', KEYS[5], unpack(ARGV, 6))
if type(saved) == 'table' then damaged_keys[#damaged_keys + 1] = KEYS[5] end
redis.pcall('EXPIRE', KEYS[5], ARGV[4])
redis.call(ARGV[3] == 'head' and 'RPUSH' or 'LPUSH', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[1])
local queue = KEYS[3]:match('{queue:(.*)}:inflight$')
redis.pcall('SADD', KEYS[1], queue)
note_if_marked(KEYS[6], queue, ARGV[2])
write(asked)
redis.call('DEL', KEYS[4]) -- wakes the children that wait for a permit (fetch.lua)
return with_damaged_keys(1)
