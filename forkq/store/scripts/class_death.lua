-- Notes that a process has died of a job of a class, and holds the class if that came too often.
--
-- KEYS  [1] the deaths of the class   [2] the hash of the held classes   [3] the set of the released ones
-- ARGV  [1] the class   [2] the identity of the process   [3] the seconds for which a death counts
--       [4] how many deaths hold the class
-- Returns 1 if the class was not held before, and is now; else 0.
--
-- A process dies once: who notes its death again, after a lost reply, changes nothing.

local class, window = ARGV[1], tonumber(ARGV[3])
local now = tonumber(redis.call('TIME')[1])

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - window)
if redis.call('ZADD', KEYS[1], 'NX', now, ARGV[2]) == 0 then return 0 end
redis.call('EXPIRE', KEYS[1], window)

local held = redis.call('HGET', KEYS[2], class)
local since, deaths = (held or ''):match('^(%d+) (%d+)$')
if since then
  redis.call('HSET', KEYS[2], class, since .. ' ' .. string.format('%.0f', deaths + 1))
  return 0
end
local count = redis.call('ZCARD', KEYS[1])
if count < tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[2], class, now .. ' ' .. count)
redis.call('SREM', KEYS[3], class)
return held and 0 or 1
