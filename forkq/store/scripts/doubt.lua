-- Part of push.lua and cron_tick.lua: what is noted of a push that finds its lock taken (lock.lua).

local MOST_DOUBTED, LARGEST_NOTED, NOTED_FOR = 1000, 65536, 86400000

-- Notes the push if nothing has confirmed the lock for a minute: the leader looks for the job that has it
-- (clock/doubted_locks.py). If that is gone, it pushes this job, the newest one noted. Without a payload it
-- only frees the lock. Returns true if the job may be pushed so.
local function note_if_doubted(notes, lock, at, payload)
  local sure = tonumber(redis.pcall('HGET', lock, 'sure') or 0)
  if sure and sure >= now_in_ms() then return end
  local digest = lock:match('[^:]*$')
  local is_noted = redis.pcall('HEXISTS', notes, digest) == 1
  if not is_noted and redis.pcall('HLEN', notes) == MOST_DOUBTED then return end
  local is_kept = payload and #payload <= LARGEST_NOTED
  if is_noted and not is_kept then return end
  redis.pcall('HSET', notes, digest, is_kept and at .. ' ' .. payload or '')
  redis.pcall('PEXPIRE', notes, NOTED_FOR)
  return is_kept
end
