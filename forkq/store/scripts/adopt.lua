-- Gives a leased job to another child, which runs it.
--
-- KEYS  [1] the in-flight hash of the job's queue
-- ARGV  [1] the lease   [2] the lease of the new owner
-- Returns the payload; nothing if the lease is gone.
--
-- The queue has as many jobs in flight as before, so no child needs to wake. The HDEL of nothing
-- comes first: see retry.lua.

local payload = redis.call('HGET', KEYS[1], ARGV[1])
if payload then
  redis.call('HDEL', KEYS[1], '')
  redis.call('HSET', KEYS[1], ARGV[2], payload)
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return payload
