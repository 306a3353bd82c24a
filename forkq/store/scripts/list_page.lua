-- Reads a page of a line of lists, from behind one entry on, while others push and fetch. Changes
-- nothing.
--
-- KEYS  the lists, in the order in which they are read
-- ARGV  [1] 'next': each from the right end on, where jobs are fetched; 'last': from the left end
--       [2] number of the list that is being read   [3] how many of its entries were read
--       [4] the last one of them ('': unknown; then what it is too short for is left out of the next)
--       [5] how many entries to return at most   [6] and about how many bytes
-- Returns the number of the list that the page is from, the first one with entries left; how many
-- entries there are now between its end and the page; 1 if a later list has entries, else 0; then the
-- page. Nothing from a key of another type: that is no list of forkq.
--
-- The page begins behind the last entry that was read, wherever that is now. If that one has left by
-- the right end, so have all that were read before it.

local from_right, number, last = ARGV[1] == 'next', tonumber(ARGV[2]), ARGV[4]

--- @include "place_in_list"

local function length(list)
  local size = redis.pcall('LLEN', list)
  if type(size) == 'number' then return size end
  return size.err:find('WRONGTYPE', 1, true) and 0 or redis.call('LLEN', list) -- raises it
end

-- How many entries are between the end of the list and the page.
local function place(list, size, read)
  if read == 0 or last == '' then return read end
  local expected = from_right and size - read or read - 1
  local now = size > 0 and index_in(list, last, size, math.max(0, expected))
  if now then return from_right and size - now or now + 1 end
  return from_right and 0 or read
end

local size = length(KEYS[number])
local read = place(KEYS[number], size, tonumber(ARGV[3]))
while read >= size and number < #KEYS do
  read = last == '' and read - size or 0
  number, last = number + 1, ''
  size = length(KEYS[number])
end

local found, bytes_left, left = { number, read, 0 }, tonumber(ARGV[6]), tonumber(ARGV[5])
for later = number + 1, #KEYS do
  if length(KEYS[later]) > 0 then found[3] = 1 end
end
local step = 4 -- doubles as long as the entries are small
while left > 0 and bytes_left > 0 and size > 0 do
  local from, to = read, read + math.min(step, left) - 1
  if from_right then from, to = -to - 1, -from - 1 end
  local part = redis.call('LRANGE', KEYS[number], from, to)
  if #part == 0 then break end
  for i = 1, #part do
    local entry = part[from_right and #part + 1 - i or i]
    found[#found + 1] = entry
    bytes_left = bytes_left - #entry
  end
  read, left, step = read + #part, left - #part, math.min(64, step * 2)
end
return found
