-- Adds what a dead child had counted and not flushed any more, once, however often it is sent.
--
-- KEYS  [1] the note of what that child has flushed (counters_flush.lua)
--       [2] [3] the counters of processed jobs, of all time and of the day   [4] [5] of failed ones
-- ARGV  [1] [2] jobs processed and failed, as the child last told its master
--       [3] seconds that the counters of a day are kept
-- Returns how many processed jobs were added.
--
-- Without a note nothing is known to be missing: nothing is added. A flush of that child that arrives
-- only now adds nothing any more. First nothing is removed: see counters_flush.lua.

local LAST = 2 ^ 53

redis.call('HDEL', KEYS[1], '')
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HSET', KEYS[1], 'number', string.format('%d', LAST))
end
local added = { 0, 0 }
for n, name in ipairs({ 'processed', 'failed' }) do
  local known = tonumber(redis.call('HGET', KEYS[1], name))
  if known and tonumber(ARGV[n]) > known then
    added[n] = tonumber(ARGV[n]) - known
    redis.call('HSET', KEYS[1], name, ARGV[n])
    redis.pcall('INCRBY', KEYS[2 * n], added[n])
    redis.pcall('INCRBY', KEYS[2 * n + 1], added[n])
    redis.call('EXPIRE', KEYS[2 * n + 1], ARGV[3])
  end
end
return added[1]
