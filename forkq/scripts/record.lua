-- Writes and lists a process record on a server that is full, where plain commands are refused.
--
-- KEYS  [1] the record   [2] the set of processes
-- ARGV  [1] seconds until it expires   [2] whose it is   [3 ..] field, value, field, value, ...
-- Returns how many fields were new.
--
-- Without its record a living process would be taken for dead, and its jobs given to others. The
-- first write is a removal (of nothing), which makes a full server take the rest.

redis.call('HDEL', KEYS[1], '')
local added = redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.pcall('SADD', KEYS[2], ARGV[2]) -- something else may stand in its place
return added
