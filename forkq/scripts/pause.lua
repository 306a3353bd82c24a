-- Pauses a queue, also on a server that is full: what begins with a removal is taken even there.
--
-- KEYS  [1] the set of paused queues     ARGV  [1] the queue
-- Returns 1 if it was not paused.

redis.call('SREM', KEYS[1], '')
return redis.call('SADD', KEYS[1], ARGV[1])
