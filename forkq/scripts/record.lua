-- Writes a process record on a server that is full, where a plain HSET is refused.
--
-- KEYS  [1] the record
-- ARGV  [1] seconds until it expires   [2 ..] field, value, field, value, ...
-- Returns how many fields were new.
--
-- Without its record a living process would be taken for dead, and its jobs given to others. The
-- first write is a removal (of nothing), which makes a full server take the rest.

redis.call('HDEL', KEYS[1], '')
local added = redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return added
