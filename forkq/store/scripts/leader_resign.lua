-- Gives up the leader's lease, and wakes those who stand by.
--
-- KEYS  [1] the lease   [2] a counter that the others watch
-- ARGV  [1] whose lease   [2] how long nobody has it, milliseconds   [3] when the counter expires,
--       seconds
-- Returns 1, or 0 if somebody else has the lease.
--
-- Nobody has it for a moment, in which the child that led in our name hears that it does so no more.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], 'nobody', 'PX', ARGV[2])
redis.call('INCR', KEYS[2])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
