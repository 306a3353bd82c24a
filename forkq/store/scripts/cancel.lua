-- Cancels jobs, or all jobs of a class: notes it for the children and for the leader's clock; and of a job
-- where Sidekiq notes it, which may run it if it is an iterable one.
--
-- KEYS  [1] what is cancelled   [2 ..] per job its cursor
-- ARGV  [1] how many notes there may be   [2] for how many seconds a job that runs may go on ('': for ever)
--       [3 ..] per job or class: its field in KEYS[1], its jid ('' for a class)
-- Returns 1, or 0 if there are too many notes: then nothing is noted.

local unpack = table.unpack or unpack -- Lua 5.4 has the former
local REMEMBERED = 3 * 86400 -- seconds: the time for which a retry is usually waited for

-- Sidekiq does not read a cursor without a value.
local function note_in_cursor(key, at)
  if redis.pcall('HEXISTS', key, 'cancelled') ~= 0 then return end -- or the key holds another type
  redis.call('HSET', key, 'cancelled', at)
  if redis.call('HEXISTS', key, 'c') == 0 then redis.call('HSET', key, 'c', 'null') end
  if redis.call('PTTL', key) < 0 then redis.call('EXPIRE', key, REMEMBERED) end
end

if redis.call('HLEN', KEYS[1]) + (#ARGV - 2) / 2 > tonumber(ARGV[1]) then return 0 end
local seconds, micros = unpack(redis.call('TIME'))
local value, cursor = string.format('%s.%06d', seconds, micros), 1
if ARGV[2] ~= '' then value = value .. ' ' .. ARGV[2] end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], value)
  if ARGV[i + 1] ~= '' then
    cursor = cursor + 1
    note_in_cursor(KEYS[cursor], seconds)
  end
end
return 1
