-- Remembers a step that a job has done, if its lease still stands.
--
-- KEYS  [1] in-flight hash of its queue   [2] its steps   [3] the queues with marked jobs
-- ARGV  [1] lease   [2] its queue   [3] the payload of the lease from now on; '' leaves it
--       [4] how many bytes the lease has until then   [5] seconds until the steps expire
--       [6] the name of the step   [7] what is remembered of it   [8] the same without its value
--       [9] how many steps there may be   [10] and how many bytes
-- Returns 0 if the lease is gone; else 1, or 2 if there is no room for the value: the step is done without it.
--
-- A call that is sent again, or comes late, changes nothing: what is remembered stays.
-- A full server refuses every addition before the first removal of a script: see retry.lua.

--- @include "leased"

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local fields = redis.call('HLEN', KEYS[2]) -- with the one that has their bytes
redis.call('HDEL', KEYS[1], '')
gain(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[3])
local known = redis.call('HGET', KEYS[2], ARGV[6])
if known then return known == ARGV[8] and 2 or 1 end
local size = (redis.call('HGET', KEYS[2], '') or 0) + #ARGV[6] + #ARGV[7]
local has_room = fields <= tonumber(ARGV[9]) and size <= tonumber(ARGV[10])
local kept = has_room and ARGV[7] or ARGV[8]
redis.call('HINCRBY', KEYS[2], '', #ARGV[6] + #kept)
redis.call('HSET', KEYS[2], ARGV[6], kept)
redis.call('EXPIRE', KEYS[2], ARGV[5])
return has_room and 1 or 2
