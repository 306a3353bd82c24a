-- Part of each script that pushes, starts or ends a job of which at most one waits (`on_duplicate` is "replace"
-- or "latest"). Its lock is a hash:
--   jid, class, at, sure   as in lock.lua. The job `jid` has the entry: the payload in a list, a set or a lease
--   queue   that of the entry
--   state   'queued': the entry is in a list, and is a ticket: it keeps its place for the newest job.
--           'scheduled', 'retrying': it is `member` in that set, and the next push removes it there; once it
--           has left, it is in a list. 'running'
--   next, next_jid, next_at, next_queue   the newest job, if it has no entry: its payload ('' if that job has
--           ended, and only its ticket is left), its jid, when it is due ('' for now), its queue
-- `place` has the names of the keys: lock, index (the locks with a newest job), schedule, retry, totals (how
-- jobs have ended), queues (their names), marked (the queues with marked jobs), list (of the queue), notes (the
-- results that the leader is to write).

--- @include "ended"
--- @include "marked"
--- @include "now"
--- @include "lock"
--- @include "result"

local NAMES = { 'jid', 'queue', 'state', 'member', 'next', 'next_jid', 'next_at', 'next_queue' }

-- Names the keys of a lock: those of KEYS from `first` on.
local function place_of(first)
  local named = {}
  for i, name in ipairs({ 'lock', 'index', 'schedule', 'retry', 'totals', 'queues', 'marked', 'list', 'notes' }) do
    named[name] = KEYS[first + i - 1]
  end
  return named
end

local function refusal_of(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err and reply
end

-- What stands in the lock, by name, or an error reply.
local function ticket_of(lock)
  local values = redis.pcall('HMGET', lock, unpack(NAMES))
  if values.err then return values end
  local found = {}
  for i, name in ipairs(NAMES) do found[name] = values[i] or nil end
  return found
end

-- The lock is held for at least so long from now on. Returns an error reply if the server refuses that.
local function hold_ticket(lock, milliseconds)
  local longest = math.max(redis.call('PTTL', lock), tonumber(milliseconds))
  return refusal_of('PEXPIRE', lock, string.format('%.0f', longest))
end

-- The job that has the lock is surely there.
local function confirm_ticket(lock)
  redis.pcall('HSET', lock, 'sure', string.format('%.0f', now_in_ms() + SURE_FOR))
end

-- Gives the lock to the job that has an entry, and forgets all else that stands there.
local function take_ticket(place, job, state, member)
  local at, sure = in_text(now_in_ms()), in_text(now_in_ms() + SURE_FOR)
  redis.pcall('DEL', place.lock)
  redis.pcall('HSET', place.lock, 'jid', job.jid, 'class', job.class, 'queue', job.queue, 'at', at, 'state', state,
    'sure', sure)
  if member then redis.pcall('HSET', place.lock, 'member', member) end
  redis.pcall('ZREM', place.index, place.lock)
  redis.pcall('PEXPIRE', place.lock, in_text(job.milliseconds))
end

local function free_ticket(place)
  redis.pcall('DEL', place.lock)
  redis.pcall('ZREM', place.index, place.lock)
end

-- Gives the newest job an entry of its own: in the list, if that is of its queue, else in the schedule, from
-- where the clock moves it. If Redis takes it nowhere, the lock keeps it.
local function enter_newest(place, found, job)
  local at, now = tonumber(found.next_at), now_in_ms() / 1000
  local newest = { jid = found.next_jid, class = job.class, queue = found.next_queue,
    milliseconds = job.milliseconds }
  local is_due = not at or at <= now
  if is_due and found.next_queue == job.queue and not refusal_of('LPUSH', place.list, found.next) then
    redis.pcall('SADD', place.queues, job.queue)
    note_if_marked(place.marked, job.queue, found.next)
    return take_ticket(place, newest, 'queued')
  end
  at = is_due and string.format('%.3f', now) or found.next_at
  if refusal_of('ZADD', place.schedule, at, found.next) then return end
  take_ticket(place, newest, 'scheduled', found.next)
end
