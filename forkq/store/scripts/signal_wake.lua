-- Gives a signal to jobs that wait for it, and makes them due now.
--
-- KEYS  [1] the event   [2] the events whose jobs the leader wakes   [3] the schedule
--       [4 ..] per job its steps
-- ARGV  [1] the name of the event   [2] the signal as the leader has read it   [3] 1: these are the last jobs
--       [4 ..] per job its jid
-- Returns how many jobs have got it.
--
-- A job whose time has come meanwhile is not in the schedule any more; it finds the signal in its steps. The first
-- write is a removal, so a full server takes the rest.

--- @include "signal"

local raw, woken = redis.call('HGET', KEYS[1], ''), 0
local signal, now = signal_in(raw), now_in_seconds()
redis.call('SREM', KEYS[2], '')

-- What waits: since when, until when, at which step, and its entry in the schedule; nothing for what another program
-- has written.
local function waiter_of(jid)
  local text = redis.call('HGET', KEYS[1], jid) or ''
  local since, till, length, rest = text:match('^(%d+%.?%d*) (%d+%.?%d*) (%d+) (.*)$')
  if not since then return nil end
  return { since = since, till = till, step = rest:sub(1, length), entry = rest:sub(length + 1) }
end

local function wake(steps, jid)
  local waiter = waiter_of(jid)
  if not waiter or not is_for(signal, waiter.since, waiter.till) then return end
  if waits(redis.pcall('HGET', steps, waiter.step)) then -- else the job has ended
    redis.call('HSET', steps, waiter.step, signal.text)
    redis.pcall('ZADD', KEYS[3], 'XX', now, waiter.entry)
    woken = woken + 1
    note_taken(KEYS[1], signal, jid)
    if signal.one then signal = nil end
  else
    redis.call('HDEL', KEYS[1], jid)
  end
end

for i = 4, #KEYS do wake(KEYS[i], ARGV[i]) end
if not signal or (ARGV[3] == '1' and raw == ARGV[2]) then redis.call('SREM', KEYS[2], ARGV[1]) end
return woken
