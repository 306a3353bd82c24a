-- Pauses a queue or a periodic job, also on a server that is full: what begins with a removal is taken
-- even there.
--
-- KEYS  [1] the set of what is paused     ARGV  [1] the name
-- Returns 1 if it was not paused.

redis.call('SREM', KEYS[1], '')
return redis.call('SADD', KEYS[1], ARGV[1])
