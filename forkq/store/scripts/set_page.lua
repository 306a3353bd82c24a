-- Reads a page of a sorted set, from behind one member on, whether that is still there or not. Changes
-- nothing.
--
-- KEYS  [1] the set
-- ARGV  [1] 'up' or 'down'   [2] [3] score and member of the last one that was read ('' and '': none)
--       [4] how many members to return at most   [5] and about how many bytes
-- Returns, flat, each member and its score. Nothing from a key of another type: that is no set of forkq.

local size = redis.pcall('ZCARD', KEYS[1])
if type(size) == 'table' then
  if size.err:find('WRONGTYPE', 1, true) then return {} end
  return size
end
local up, score, member = ARGV[1] == 'up', ARGV[2], ARGV[3]

-- Whether a comes after b by their bytes, which is the order of Redis. Lua's own < follows the locale.
local function is_after(a, b)
  local at = 1
  while at <= #a and at <= #b and a:sub(at, at + 255) == b:sub(at, at + 255) do at = at + 256 end
  for i = at, math.min(at + 255, #a, #b) do
    if a:byte(i) ~= b:byte(i) then return a:byte(i) > b:byte(i) end
  end
  return #a > #b
end

-- How many members come before the last one that was read, and whether that is still there.
local function place()
  if redis.call('ZSCORE', KEYS[1], member) == score then
    return redis.call('ZRANK', KEYS[1], member), true
  end
  local low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', KEYS[1], '-inf', score)
  while low < high do -- among those of the same score
    local middle = math.floor((low + high) / 2)
    if is_after(redis.call('ZRANGE', KEYS[1], middle, middle)[1], member) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low, false
end

local at = up and 0 or size - 1
if score ~= '' then
  local before, there = place()
  at = up and (there and before + 1 or before) or before - 1
end

local found, bytes_left, left = {}, tonumber(ARGV[5]), tonumber(ARGV[4])
local step = 4 -- doubles as long as the members are small
while left > 0 and bytes_left > 0 and at >= 0 do
  local count, part = math.min(step, left), nil
  if up then
    part = redis.call('ZRANGE', KEYS[1], at, at + count - 1, 'WITHSCORES')
  else
    part = redis.call('ZRANGE', KEYS[1], size - 1 - at, size - 2 - at + count, 'REV', 'WITHSCORES')
  end
  if #part == 0 then break end
  for i = 1, #part do found[#found + 1] = part[i] end
  for i = 1, #part, 2 do bytes_left = bytes_left - #part[i] end
  at, left = up and at + count or at - count, left - count
  step = math.min(64, step * 2)
end
return found
