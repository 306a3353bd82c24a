-- Part of doubt_over.lua and lock_free.lua: frees the lock of a unique job of any kind.

--- @include "ticket"

-- Where at most one job waits, the lock has the newest one itself: the schedule leads that to its queue, and
-- it has the lock. Returns whether that was so.
local function free_lock(lock, index, schedule)
  local found = ticket_of(lock)
  if not found.next or found.next == '' then
    redis.call('DEL', lock)
    return false
  end
  local class, milliseconds = redis.call('HGET', lock, 'class'), redis.call('PTTL', lock)
  enter_newest({ lock = lock, index = index, schedule = schedule }, found,
    { class = class, milliseconds = milliseconds })
  return true
end
