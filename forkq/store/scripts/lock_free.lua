-- Frees the lock of a unique job by hand.
--
-- KEYS  [1] the lock   [2] the locks with a newest job   [3] the schedule
-- ARGV  [1] the jid that has it, as far as the person knows
-- Returns 1 if it is free, 2 if the newest job has it now, 0 if that jid had it no more.
--
-- The HDEL of nothing is for a full server: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "free_lock"

if holder_of(KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], '')
return free_lock(KEYS[1], KEYS[2], KEYS[3]) and 2 or 1
