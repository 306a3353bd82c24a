-- Gives up the leader's lease, and wakes the clocks that wait for it.
--
-- KEYS  [1] the lease   [2] a counter that the other clocks watch
-- ARGV  [1] the holder   [2] how long the lease stays blocked, milliseconds   [3] when the counter
--       expires, seconds
-- Returns 1, or 0 if another process has the lease.
--
-- For a moment no process can take the lease. In that time the child that told its app that it leads
-- hears that it no longer does.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], 'nobody', 'PX', ARGV[2])
redis.call('INCR', KEYS[2])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
