-- Part of fetch.lua: without rules, a queue gives all that it has.

local take = move

local function room(queue, count)
  if damaged[queue] or bytes_left <= 0 then return 0 end
  return math.min(count, size_of(queue, 1, 'LLEN'))
end
