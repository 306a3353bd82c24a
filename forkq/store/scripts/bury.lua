-- Moves one job from its lease to the dead set, and trims the set by age and size.
--
-- KEYS  [1] in-flight hash of its queue   [2] the dead set   [3] the mark of those that wait for its end
--       then those of its effects
-- ARGV  [1] lease   [2] now, epoch seconds   [3] the payload to bury; '': as it is in the lease
--       [4] entries older than this, epoch seconds, are dropped   [5] how many entries to keep
--       [6] its effects (effects.lua)
-- Returns 1, or 0 if the lease is gone: another process owns the job now. After damage: see end.lua.
--
-- The order of the writes has the same reasons as in retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "effects"

local leased = redis.pcall('HEXISTS', KEYS[1], ARGV[1])
if leased == 0 then return 0 end
local damaged = type(leased) == 'table' and leased.err and leased.err:find('WRONGTYPE', 1, true)
if leased ~= 1 and not damaged then return leased end
local effects = look_at(ARGV[6])
if not damaged then redis.call('HDEL', KEYS[1], '') end -- raises where the user may not remove
local payload = ARGV[3] ~= '' and ARGV[3] or redis.call('HGET', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[2], payload)
write(effects)
if not damaged then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('DEL', KEYS[3]) -- wakes the children that wait for a permit (fetch.lua)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[4])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[5]) - 1)
return with_damaged_keys(1)
