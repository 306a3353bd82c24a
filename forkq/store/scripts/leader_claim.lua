-- Takes the leader's lease, if nobody has it, or it is ours already, or whoever has it is dead.
--
-- KEYS  [1] the lease
-- ARGV  [1] who wants it   [2] for how long, milliseconds   [3] a holder that is dead; '' if none is
-- Returns who has it now, and for how many milliseconds.
--
-- The first write is a removal, which makes a full server take the rest: a cluster whose server is
-- full must be led all the same. A lease that never runs out, or not for longer than we ask for, is
-- none: nobody has written it, or the server's wall clock was set back.

local holder, left = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
local held = holder and left >= 0 and left <= tonumber(ARGV[2])
if held and holder ~= ARGV[1] and holder ~= ARGV[3] then return { holder, left } end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { ARGV[1], tonumber(ARGV[2]) }
