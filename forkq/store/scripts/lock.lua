-- Part of each script that takes, holds or looks at the lock of a unique job, a hash. `jid` is that of the job
-- that holds it, `class` its class, `at` when it was taken, `sure` until when the job is surely there (both epoch
-- milliseconds). Of a job of which at most one waits the lock has more: ticket.lua.

local SURE_FOR = 60000 -- what nothing has confirmed for a minute may be doubted

-- Who holds the lock: a jid, '' if the lock is free, or an error reply.
local function holder_of(lock)
  return redis.pcall('HGET', lock, 'jid') or ''
end

local taken_at, usually_sure -- as text

-- The lock is free after `milliseconds`, a text, at last. `never_doubted`: it outlasts its job.
local function take_lock(lock, jid, class, milliseconds, is_new, never_doubted)
  usually_sure = usually_sure or in_text(now_in_ms() + SURE_FOR)
  local sure = never_doubted and in_text(now_in_ms() + milliseconds) or usually_sure
  if is_new then
    taken_at = taken_at or in_text(now_in_ms())
    redis.pcall('HSET', lock, 'jid', jid, 'class', class, 'at', taken_at, 'sure', sure)
  else
    redis.pcall('HSET', lock, 'sure', sure)
  end
  redis.pcall('PEXPIRE', lock, milliseconds)
end
