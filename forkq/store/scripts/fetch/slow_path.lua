-- Part of fetch.lua: reads the groups, and begins the slow path (by weight, in turn, or with rules).

local function argument()
  position = position + 1
  return tonumber(ARGV[position])
end

local groups, last_queue = {}, 0
for group = 1, argument() or 0 do
  local first = last_queue + 1
  last_queue = last_queue + argument()
  groups[group] = { first = first, last = last_queue, weight = argument(), in_turn = argument() == 1 }
end
local rule_count = argument() or 0

-- The size of the list (key 1 of the queue, LLEN) or the in-flight hash (key 2, HLEN) of a queue; 0 if damaged.
local function size_of(queue, key_number, command)
  local key = KEYS[2 * queue + key_number]
  local size = pcall(command, key)
  if type(size) ~= 'table' then return size end
  check_damage(size, command, key)
  damaged[queue] = key_number
  return 0
end
