-- Changes rules of a queue at run time, and wakes the children that wait.
--
-- KEYS  [1] the hash of the queues with rules changed at run time   [2] that queue's own rules
-- ARGV  [1] the queue   then per rule: its name, its value ('': as the configuration has it)
--
-- A child that waits watches KEYS[1]. A queue without a rule of its own is removed from it, so that a
-- fetch takes the fast path again. The HDEL of nothing is for a full server: see retry.lua.

redis.call('HDEL', KEYS[2], '')
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
