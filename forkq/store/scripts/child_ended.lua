-- Counts how a child has ended. Sent twice, it counts once.
--
-- KEYS  [1] the record of what that child flushed (counters_flush.lua)   [2] the hash of the ends of children
-- ARGV  [1] how it has ended   [2] how many names the hash may have   [3] seconds that the record is kept
-- Returns 1 if it was not counted before.
--
-- The HDEL of nothing is for a full server: see retry.lua. The record is written first: what fails
-- further down is not counted again.

--- @include "counters/name_in_totals"

redis.call('HDEL', KEYS[1], '')
if redis.call('HEXISTS', KEYS[1], 'ended') == 1 then return 0 end
redis.call('HSET', KEYS[1], 'ended', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
local name = name_in_totals(KEYS[2], ARGV[1], tonumber(ARGV[2]), redis.call)
redis.call('HINCRBY', KEYS[2], name .. '|n', 1)
return 1
