-- Part of push_debounced.lua, cron_tick.lua and effects/debounce.lua: debounced jobs. The lock of one is a hash:
--   jid, class, at, sure   as in lock.lua; `at`: when the first of the pushes came
--   member        the job's entry in the schedule, whose place the next push takes. Once that has left the
--                 schedule, the lock keeps nothing out
--   due, latest   when the job is due if no push follows, and at the latest (both epoch milliseconds)

--- @include "result"

local LOCKED_FOR = 30 * 86400000 -- from the due time on, if no script frees it: as ticket.lua's locks
local STAMP = '\1' -- where the payload has the moment at which it expires: push.lua

-- The job has the lock, and its entry is `member`.
local function hold_debounced(lock, job, member, first, due, latest)
  local lapses = due + LOCKED_FOR
  redis.pcall('DEL', lock)
  redis.pcall('HSET', lock, 'jid', job.jid, 'class', job.class, 'at', in_text(first), 'member', member,
    'due', in_text(due), 'latest', in_text(latest), 'sure', in_text(lapses))
  redis.pcall('PEXPIRE', lock, in_text(lapses - now_in_ms()))
end

-- The score of the member as text; nothing if the set has it not.
local function score_of(set, member)
  local score = member and redis.pcall('ZMSCORE', set, member)[1]
  return type(score) == 'string' and score
end

-- Adds the job to the schedule, in the place of the one that waits there. One that is beyond its latest time
-- stays: however late the clock is, it finds that one. A job that was pushed before is not pushed again.
-- Returns 1 or an error reply. `notes`: the results that the leader is to write.
local function push_debounced(schedule, totals, notes, lock, job)
  local now, found = now_in_ms(), redis.pcall('HMGET', lock, 'jid', 'member', 'at')
  if found.err then count_end(totals, 'damaged', '(feature)') end
  local jid, member, first = found[1], found[2], tonumber(found[3] or '')
  if jid == job.jid then return 1 end
  local most = 1000 * job.most
  local is_replaced = first and now < first + most and score_of(schedule, member)
  if not is_replaced then first = now end
  local latest = first + most
  local due = math.min(now + 1000 * job.after, latest)
  local moment = string.format('%.6f', due / 1000 + job.expires_in)
  local payload = job.payload:gsub(STAMP, moment)
  local reply = redis.pcall('ZADD', schedule, string.format('%.3f', due / 1000), payload)
  if type(reply) == 'table' and reply.err then return reply end
  if is_replaced then
    redis.pcall('ZREM', schedule, member)
    count_end(totals, 'replaced', job.class)
    if has_result(member) then note_ended(notes, 'replaced', jid) end
  end
  if not found.err then hold_debounced(lock, job, payload, first, due, latest) end
  return 1
end
