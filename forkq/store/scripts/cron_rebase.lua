-- Sets the last tick of periodic jobs. Each changes only if it still is as the clock read it.
--
-- KEYS  [1] last ticks
-- ARGV  per periodic job: its name, the last tick as it was read ('' if there was none), the new one
-- Returns how many were set. The HDEL of nothing is for a full server: see retry.lua.

local set = 0
redis.call('HDEL', KEYS[1], '')
for i = 1, #ARGV, 3 do
  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') == ARGV[i + 1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    set = set + 1
  end
end
return set
