-- Saves the cursor of an iterable job that runs, if its lease still stands.
--
-- KEYS  [1] in-flight hash of its queue   [2] the cursor   [3] the queues with marked jobs
-- ARGV  [1] lease   [2] its queue   [3] the payload of the lease from now on; '' leaves it
--       [4] how many bytes the lease has until then   [5] seconds until the cursor expires
--       [6 ..] fields of the cursor, each with its value: ex, c, rt
-- Returns {} if the lease is gone. Else when another process has cancelled the job, '' if none has; and 1 if
--         the cursor was saved, 0 if its key holds another type.
--
-- A full server refuses every addition before the first removal of a script: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "leased"

-- A command whose connection has ended may arrive after a later one of the same run.
local function comes_late()
  local runs, seconds = unpack(redis.pcall('HMGET', KEYS[2], 'ex', 'rt'))
  return runs == ARGV[7] and seconds and tonumber(seconds) > tonumber(ARGV[11])
end

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {} end
redis.call('HDEL', KEYS[1], '')
gain(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[3])
local saved = comes_late() or redis.pcall('HSET', KEYS[2], unpack(ARGV, 6))
if type(saved) == 'table' then return { '', 0 } end
redis.call('EXPIRE', KEYS[2], ARGV[5])
return { redis.call('HGET', KEYS[2], 'cancelled') or '', 1 }
