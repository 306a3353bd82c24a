-- Takes the leader's lease if it is free, if the caller has it already, or if its holder is dead.
--
-- KEYS  [1] the lease
-- ARGV  [1] the caller   [2] for how long, milliseconds   [3] a holder that is dead; '' if none is
-- Returns who has the lease now, and for how many milliseconds.
--
-- A cluster needs a leader also while its server is full: the first write is a removal, so that a full
-- server takes the rest. A lease that never expires, or lasts longer than the caller asks for, counts
-- as free: forkq did not write it, or the server's wall clock was set back.

local holder, left = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
local is_taken = holder and left >= 0 and left <= tonumber(ARGV[2])
if is_taken and holder ~= ARGV[1] and holder ~= ARGV[3] then return { holder, left } end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { ARGV[1], tonumber(ARGV[2]) }
