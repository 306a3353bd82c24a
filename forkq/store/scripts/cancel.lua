-- Cancels jobs, or all jobs of a class: notes it for the children and for the leader's clock.
--
-- KEYS  [1] what is cancelled   [2] the jobs that ended so lately
-- ARGV  [1] how many notes there may be   [2] for how many seconds a job that runs may go on ('': for ever)
--       [3 ..] per job or class: its field in KEYS[1], its jid ('' for a class)
-- Returns 1, or 0 if there are too many notes: then nothing is noted.

local unpack = table.unpack or unpack -- Lua 5.4 has the former
if redis.call('HLEN', KEYS[1]) + (#ARGV - 2) / 2 > tonumber(ARGV[1]) then return 0 end
local seconds, micros = unpack(redis.call('TIME'))
local value = string.format('%s.%06d', seconds, micros)
if ARGV[2] ~= '' then value = value .. ' ' .. ARGV[2] end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], value)
  if ARGV[i + 1] ~= '' then redis.pcall('ZREM', KEYS[2], ARGV[i + 1]) end
end
return 1
