-- Changes rules of a queue at run time, and wakes the children that wait.
--
-- KEYS  [1] the hash of queues whose rules were changed   [2] that queue's own rules
-- ARGV  [1] the queue   then per rule: its name, its value ('': as the configuration has it)
--
-- Whoever waits watches KEYS[1]. A queue without a rule of its own leaves it, so that a fetch takes
-- the short way again. A full server takes what begins with a removal, so that it can be helped.

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
