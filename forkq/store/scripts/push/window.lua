-- Part of push.lua: jobs that are pushed so often at most (throttle.lua). Each has a key: its window.
-- The arguments: how many are pushed in how many milliseconds.

--- @include "throttle"

local before, most, milliseconds, class
local pushed -- by window: how many jobs of the group

parts.w = {
  begin = function(i, keys, count, name)
    before, most, milliseconds, class, pushed = keys, ARGV[i], ARGV[i + 1], name, {}
    return i + 2, keys + count
  end,
  look = function(number)
    local window = KEYS[before + number]
    if is_used_up(window, pushed[window] or 0, most, milliseconds, KEYS[4]) then
      return count_or_refuse(KEYS[4], 'throttled', class) or ''
    end
  end,
  take = function(number)
    local window = KEYS[before + number]
    pushed[window] = (pushed[window] or 0) + 1
  end,
  write = function()
    for window, count in pairs(pushed) do note_in_window(window, count, most, milliseconds) end
  end,
}
