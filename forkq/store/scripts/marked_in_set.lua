-- Finds the members of a page of a sorted set that may be marked jobs. Changes nothing.
--
-- KEYS  [1] the set
-- ARGV  [1] how many members were looked at before   [2] how many to look at, at most
--       [3] and about how many bytes
-- Returns how many it has looked at, then those members.

local from, most, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local found, looked, step = { 0 }, 0, 4 -- doubles as long as the members are small
while looked < most and bytes_left > 0 do
  local first = from + looked
  local part = redis.call('ZRANGE', KEYS[1], first, first + math.min(step, most - looked) - 1)
  if #part == 0 then break end
  for _, member in ipairs(part) do
    looked, bytes_left = looked + 1, bytes_left - #member
    if member:sub(-8192):find('"needs":{', 1, true) then found[#found + 1] = member end
  end
  step = math.min(128, 2 * step)
end
found[1] = looked
return found
