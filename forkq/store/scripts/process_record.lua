-- Writes a process record and its process reference (which host and process it is), also on a full server.
--
-- KEYS  [1] the record   [2] the process reference
-- ARGV  [1] seconds until the record expires   [2] the same of the reference   [3] the reference
--       [4 ..] field, value, field, value, ...
-- Returns how many fields were new.
--
-- Without them other processes would take a living process for dead, and run its jobs again. The
-- HDEL of nothing is for a full server: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

redis.call('HDEL', KEYS[1], '')
local added = redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[2])
return added
