-- Part of each script that takes, holds or looks at the lock of a unique job, a hash. `jid` is that of the job
-- that holds it, `class` its class, `at` when it was taken, `sure` until when the job is surely there (both epoch
-- milliseconds). Of a job of which at most one waits the lock has more: ticket.lua.

local SURE_FOR = 60000 -- what nothing has confirmed for a minute may be doubted

local started -- when the script began, epoch milliseconds

local function now_in_ms()
  if not started then
    local time = redis.call('TIME')
    started = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return started
end

-- Who holds the lock: a jid, '' if the lock is free, or an error reply.
local function holder_of(lock)
  return redis.pcall('HGET', lock, 'jid') or ''
end

local taken_at, usually_sure -- as text

-- The lock is free after `milliseconds` at last. `never_doubted`: it outlasts its job.
local function take_lock(lock, jid, class, milliseconds, is_new, never_doubted)
  taken_at = taken_at or string.format('%.0f', now_in_ms())
  usually_sure = usually_sure or string.format('%.0f', now_in_ms() + SURE_FOR)
  local sure = never_doubted and string.format('%.0f', now_in_ms() + milliseconds) or usually_sure
  if is_new then
    redis.pcall('HSET', lock, 'jid', jid, 'class', class, 'at', taken_at, 'sure', sure)
  else
    redis.pcall('HSET', lock, 'sure', sure)
  end
  redis.pcall('PEXPIRE', lock, string.format('%.0f', milliseconds))
end
