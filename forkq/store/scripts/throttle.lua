-- Part of push.lua and cron_tick.lua: jobs that are pushed so often at most. A window is a list of the moments of the
-- latest pushes (epoch milliseconds), the newest first. It has as many as may be pushed in its time, and ends with
-- that.

-- Whether as many have been pushed in the time as may be. `new` of them were pushed by this call, and are not noted
-- yet. A window that holds another type is left out.
local function is_used_up(window, new, most, milliseconds, totals)
  if new >= tonumber(most) then return true end
  local first = redis.pcall('LINDEX', window, most - 1 - new)
  if type(first) == 'table' and first.err then
    count_end(totals, 'damaged', '(feature)')
    return false
  end
  return first and tonumber(first) > now_in_ms() - milliseconds
end

local function note_in_window(window, count, most, milliseconds)
  local now = string.format('%.0f', now_in_ms())
  for _ = 1, count do redis.pcall('LPUSH', window, now) end
  redis.pcall('LTRIM', window, 0, most - 1)
  redis.pcall('PEXPIRE', window, milliseconds)
end
