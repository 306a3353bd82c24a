-- Part of push.lua: the results of the jobs that it has pushed.

--- @include "result"

-- Writes the placeholders of a group. `waits` has of each job the number of the key of its result, and when the
-- job is due.
local function await_results(waits, placeholder, milliseconds)
  for _, each in ipairs(waits) do
    local delay = each[2] and math.max(0, 1000 * each[2] - started) or 0
    await_result(KEYS[each[1]], placeholder, delay + milliseconds, KEYS[4])
  end
end
