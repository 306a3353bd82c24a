-- Removes notes of what is cancelled, each only if it is still the same, and forgets the jobs that have ended
-- so long ago.
--
-- KEYS  [1] what is cancelled   [2] the jobs that ended so lately
-- ARGV  [1] how many of these are remembered   [2] for how many seconds   [3 ..] per note: its field, its
--       value
-- Returns how many notes were removed.

local now, removed = tonumber(redis.call('TIME')[1]), 0
for i = 3, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    removed = removed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
redis.pcall('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[2])
redis.pcall('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[1]) - 1)
return removed
