-- Sends a signal to the jobs that wait for an event, and to those that will.
--
-- KEYS  [1] the event   [2] the events whose jobs the leader wakes
-- ARGV  [1] the name of the event   [2] the data, as JSON   [3] for how many seconds jobs get it
--       [4] 1: only one job gets it
-- Returns 1, or 0 if another signal stands there: the first one counts.

--- @include "signal"

local before, at = signal_in(redis.call('HGET', KEYS[1], '')), now_in_seconds()
if before and before.stays >= tonumber(at) then return 0 end
local stays = string.format('%.6f', at + ARGV[3])
redis.call('HSET', KEYS[1], '', at .. ' ' .. stays .. ' ' .. ARGV[4] .. ' ' .. ARGV[2])
keep(KEYS[1], tonumber(ARGV[3]))
if redis.call('HLEN', KEYS[1]) > 1 then redis.call('SADD', KEYS[2], ARGV[1]) end
return 1
