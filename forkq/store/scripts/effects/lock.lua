-- Part of effects.lua and push.lua: the lock of a unique job, a hash. `jid` is that of the job that holds it,
-- `class` its class, `at` when it was taken, `sure` until when the job is surely there (both epoch
-- milliseconds).

local SURE_FOR = 60000 -- what nothing has confirmed for a minute may be doubted

local function now_in_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Who holds the lock: a jid, '' if the lock is free, or an error reply.
local function holder_of(lock)
  return redis.pcall('HGET', lock, 'jid') or ''
end

-- The lock is free after `milliseconds` at last.
local function take_lock(lock, jid, class, milliseconds, is_new)
  local now = now_in_ms()
  local sure = string.format('%.0f', now + SURE_FOR)
  if is_new then
    redis.pcall('HSET', lock, 'jid', jid, 'class', class, 'at', string.format('%.0f', now), 'sure', sure)
  else
    redis.pcall('HSET', lock, 'sure', sure)
  end
  redis.pcall('PEXPIRE', lock, string.format('%.0f', milliseconds))
end

-- Frees the lock if this job has it: the effect has its jid.
effect_kinds.unlock = {
  look = function(lock) return holder_of(lock) end,
  write = function(lock, effect, holder)
    if holder == effect[3] then redis.pcall('DEL', lock) end
    return true
  end,
}

-- Takes the lock if it is free, or holds it for longer: the effect has jid, class, and milliseconds.
effect_kinds.lock = {
  look = function(lock) return holder_of(lock) end,
  write = function(lock, effect, holder)
    if holder ~= '' and holder ~= effect[3] then return false end
    take_lock(lock, effect[3], effect[4], effect[5], holder == '')
    return true
  end,
}
