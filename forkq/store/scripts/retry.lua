-- Moves one failed job from its lease to the retry set: both, or neither.
--
-- KEYS  [1] in-flight hash of its queue   [2] the retry set
-- ARGV  [1] lease   [2] when to run again, epoch seconds   [3] the new payload
-- Returns 1, or 0 if the lease is gone: the job belongs to somebody else by now.

-- An error does not undo what a script has done: so the lease goes last. A full server refuses to
-- add anything before a removal, hence the removal of nothing. Where another program has put something
-- else in the hash's place all of its leases are gone, and nobody else has the job: it is kept.

local held = redis.pcall('HEXISTS', KEYS[1], ARGV[1])
if held == 0 then return 0 end
local damaged = type(held) == 'table' and held.err and held.err:find('WRONGTYPE', 1, true)
if held ~= 1 and not damaged then return held end
redis.pcall('HDEL', KEYS[1], '')
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
if not damaged then redis.call('HDEL', KEYS[1], ARGV[1]) end
local mark = KEYS[1]:sub(1, -9) -- whoever waits for a slot or for the queue to come to rest: fetch.lua
redis.call('DEL', mark .. 'full', mark .. 'busy')
return 1
