-- Part of push_newest.lua and cron_tick.lua: the push of a job of which at most one waits. `place` is as in
-- ticket.lua, and has the key `doubted`: the pushes that have met a doubted lock.

--- @include "ticket"
--- @include "doubt"

local INDEXED_FOR = 90 * 86400000 -- the index drops a lock that has noted no job for so long

-- The job that has waited ends: `job` takes its place. The lock need not have its payload.
local function end_replaced(place, found, job)
  count_end(place.totals, 'replaced', job.class)
  local payload = found.next or found.member
  local is_kept = has_result(payload) or not payload and has_result(job.payload)
  if is_kept then note_ended(place.notes, 'replaced', found.next and found.next_jid or found.jid) end
end

-- Notes the newest job, which has no entry. Returns 1 or an error reply. A ticket in another queue is looked for
-- at once: perhaps no process serves that queue any more.
local function note_newest(place, found, job)
  local refusal = refusal_of('HSET', place.lock, 'next', job.payload, 'next_jid', job.jid, 'next_at', job.at,
    'next_queue', job.queue)
  if refusal then return refusal end
  local now = now_in_ms()
  redis.pcall('ZREMRANGEBYSCORE', place.index, '-inf', in_text(now - INDEXED_FOR))
  redis.pcall('ZADD', place.index, in_text(now), place.lock)
  local before = found.next or found.state ~= 'running' and found.jid or ''
  if before ~= '' then end_replaced(place, found, job) end
  hold_ticket(place.lock, job.milliseconds)
  if found.state ~= 'running' and found.queue ~= job.queue then redis.pcall('HSET', place.lock, 'sure', '0') end
  note_if_doubted(place.doubted, place.lock, '', false)
  return 1
end

-- The set in which the entry stands; nothing if it is elsewhere.
local function set_of(place, found)
  local sets = { scheduled = place.schedule, retrying = place.retry }
  local set = sets[found.state]
  return set and type(redis.pcall('ZMSCORE', set, found.member)[1]) == 'string' and set
end

-- Pushes a job in the place of the one that waits; or as an entry of its own by `add`, which returns 1 or an
-- error reply. One that was pushed before is not pushed again; only a server that takes writes says so.
local function push_newest(place, job, add)
  local found = ticket_of(place.lock)
  if found.err then
    count_end(place.totals, 'damaged', '(feature)')
    return add(job)
  end
  if found.jid == job.jid or found.next_jid == job.jid then
    return hold_ticket(place.lock, job.milliseconds) or 1
  end
  local set = set_of(place, found)
  if found.jid and not set then return note_newest(place, found, job) end
  local reply = add(job)
  if reply ~= 1 then return reply end
  if set then
    redis.pcall('ZREM', set, found.member)
    end_replaced(place, found, job)
  end
  local is_due = job.at == ''
  take_ticket(place, job, is_due and 'queued' or 'scheduled', not is_due and job.payload)
  return 1
end
