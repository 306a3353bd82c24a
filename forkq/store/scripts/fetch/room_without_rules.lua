-- Part of fetch.lua: without rules, a queue gives all that it has.

local function room(queue, count)
  if damaged[queue] or bytes_left <= 0 then return 0 end
  return math.min(count, size_of(queue, 1, 'LLEN'))
end

local function take(queue, count)
  count = room(queue, count)
  return count > 0 and move(queue, count) or 0
end
