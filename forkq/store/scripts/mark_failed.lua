-- Replaces the payload of one lease, if the lease still stands.
--
-- KEYS  [1] in-flight hash of its queue
-- ARGV  [1] lease   [2] the new payload
-- Returns 1, or 0 if the lease is gone.
--
-- A full server refuses every addition before the first removal of a script: see retry.lua.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
