-- Writes a process record and its place on a server that is full, where a plain HSET is refused.
--
-- KEYS  [1] the record   [2] the place
-- ARGV  [1] seconds until the record expires   [2] the same of the place   [3] the place
--       [4 ..] field, value, field, value, ...
-- Returns how many fields were new.
--
-- Without them a living process would be taken for dead, and its jobs given to others. The first
-- write is a removal (of nothing), which makes a full server take the rest.

redis.call('HDEL', KEYS[1], '')
local added = redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[2])
return added
