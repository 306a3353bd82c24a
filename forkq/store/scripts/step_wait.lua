-- Looks whether a wait of a job that runs is over, and remembers how it has ended, if its lease still stands.
--
-- KEYS  [1] in-flight hash of its queue   [2] its steps   [3] the queues with marked jobs   [4] the event
-- ARGV  [1] lease   [2] its queue   [3] the payload of the lease from now on; '' leaves it
--       [4] how many bytes the lease has until then   [5] seconds until the steps expire
--       [6] the name of the step   [7] jid   [8] since when the job waits ('': from now on)   [9] until when
--       (epoch seconds; '' from now on as long as [10] says)   [10] for how many seconds it waits
-- Returns 0 if the lease is gone; else what is remembered of the wait, or '' if it goes on.
--
-- A full server refuses every addition before the first removal of a script: see retry.lua.

--- @include "leased"
--- @include "signal"

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local known, signal = redis.call('HGET', KEYS[2], ARGV[6]), signal_in(redis.call('HGET', KEYS[4], ''))
if known and not waits(known) then return known end
local now = now_in_seconds()
local since = ARGV[8] ~= '' and ARGV[8] or now
local till = ARGV[9] ~= '' and tonumber(ARGV[9]) or now + ARGV[10]
local answer = ''
if is_for(signal, since, till) then
  answer = signal.text
elseif tonumber(now) >= till then
  answer = '{"at":' .. now .. ',"timed_out":true}'
end
if answer == '' then return answer end
redis.call('HDEL', KEYS[1], '')
gain(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[3])
redis.call('HSET', KEYS[2], ARGV[6], answer)
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('HDEL', KEYS[4], ARGV[7])
if is_for(signal, since, till) then note_taken(KEYS[4], signal, ARGV[7]) end
return answer
