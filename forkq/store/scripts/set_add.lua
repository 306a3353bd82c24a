-- Adds to a set, also on a full server: the first write is a removal (see retry.lua).
--
-- KEYS  [1] the set     ARGV  its new members
-- Returns how many of them were not in it.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

redis.call('SREM', KEYS[1], '')
return redis.call('SADD', KEYS[1], unpack(ARGV))
