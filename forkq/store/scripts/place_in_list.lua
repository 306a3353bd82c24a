-- Part of list_page.lua and jobs_move.lua: finds an entry of a list again that others have moved.

local WINDOW, WINDOWS = 128, 32

-- The index of an entry that was at the index `from`, or false if it has left. Jobs that are fetched
-- move it to the right, so it is looked for there; then, since jobs may also be deleted or returned,
-- everywhere.
local function index_in(list, entry, size, from)
  for at = from, math.min(size, from + WINDOW * WINDOWS) - 1, WINDOW do
    for i, found in ipairs(redis.call('LRANGE', list, at, at + WINDOW - 1)) do
      if found == entry then return at + i - 1 end
    end
  end
  return redis.call('LPOS', list, entry)
end
