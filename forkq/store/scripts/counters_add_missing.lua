-- Adds what a dead child counted and did not flush. Sent twice, it adds nothing the second time.
--
-- KEYS  [1] the record of what that child flushed (counters_flush.lua)
--       [2] [3] the counters of processed jobs, of all time and of the day   [4] [5] of failed jobs
-- ARGV  [1] [2] jobs processed and failed, as the child last reported to its master
--       [3] seconds that the counters of a day are kept
-- Returns how many processed jobs were added.
--
-- Without a record the script cannot know what is missing, and adds nothing. A flush of that child
-- that arrives later adds nothing. The HDEL of nothing is for a full server: see retry.lua.

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
