-- Moves a leased job to the head of its queue's list of suspects, unrun and unchanged.
--
-- KEYS  [1] the in-flight hash of its queue   [2] the queue's list of suspects
--       [3] the set of the queues that have suspects
-- ARGV  [1] the lease   [2] the name of the queue
-- Returns 1, or 0 if the lease is gone: another process owns the job now.
--
-- The order of the writes has the same reasons as in retry.lua.

local payload = redis.call('HGET', KEYS[1], ARGV[1])
if not payload then return 0 end
redis.call('HDEL', KEYS[1], '')
redis.call('RPUSH', KEYS[2], payload)
redis.call('HDEL', KEYS[1], ARGV[1])
redis.pcall('SADD', KEYS[3], ARGV[2])
local mark = KEYS[1]:sub(1, -9) -- wakes the children that wait for a permit (fetch.lua)
redis.call('DEL', mark .. 'full', mark .. 'busy')
return 1
