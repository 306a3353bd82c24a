-- Part of push.lua: jobs whose results are kept. Each has a key: its result. The arguments: the
-- placeholder of that, and for how many milliseconds from its due time on a job may wait until that is gone.

--- @include "placeholder"

local before, placeholder, milliseconds
local waits -- of each job the key of its result, and when it is due

parts.r = {
  begin = function(i, keys, count)
    before, placeholder, milliseconds, waits = keys, ARGV[i], ARGV[i + 1], {}
    return i + 2, keys + count
  end,
  take = function(number, _, at) waits[#waits + 1] = { KEYS[before + number], at } end,
  write = function()
    for _, each in ipairs(waits) do
      local delay = each[2] and math.max(0, 1000 * each[2] - now_in_ms()) or 0
      await_result(each[1], placeholder, delay + milliseconds, KEYS[4])
    end
  end,
}
