-- Reads a page of a list, from behind one entry on, while others push and fetch. Changes nothing.
--
-- KEYS  [1] the list
-- ARGV  [1] 'next': from the right end on, where jobs are fetched; 'last': from the left end
--       [2] how many entries were read from that end   [3] the last one of them ('': unknown)
--       [4] how many entries to return at most   [5] and about how many bytes
-- Returns how many entries there are now between that end and the page, then the page. Nothing from a
-- key of another type: that is no queue of forkq.
--
-- The last entry that was read has moved to the right by as many jobs as were fetched or pushed
-- meanwhile, so the script looks for it from where it was to the right; then, since jobs may also be
-- deleted or returned, everywhere. If it has left by the right end, so have all that were read before.

local size = redis.pcall('LLEN', KEYS[1])
if type(size) == 'table' then
  if size.err:find('WRONGTYPE', 1, true) then return { 0 } end
  return size
end
local from_right, read, last = ARGV[1] == 'next', tonumber(ARGV[2]), ARGV[3]
local WINDOW, WINDOWS = 128, 32

local function index_of_last(from)
  for at = from, math.min(size, from + WINDOW * WINDOWS) - 1, WINDOW do
    for i, entry in ipairs(redis.call('LRANGE', KEYS[1], at, at + WINDOW - 1)) do
      if entry == last then return at + i - 1 end
    end
  end
  return redis.call('LPOS', KEYS[1], last) -- false if it has left
end

if read > 0 and last ~= '' then
  local expected = from_right and size - read or read - 1
  local now = index_of_last(math.max(0, expected))
  if now then
    read = from_right and size - now or now + 1
  elseif from_right then
    read = 0
  end
end

local found, bytes_left, left = { read }, tonumber(ARGV[5]), tonumber(ARGV[4])
local step = 4 -- doubles as long as the entries are small
while left > 0 and bytes_left > 0 do
  local from, to = read, read + math.min(step, left) - 1
  if from_right then from, to = -to - 1, -from - 1 end
  local part = redis.call('LRANGE', KEYS[1], from, to)
  if #part == 0 then break end
  for i = 1, #part do
    local entry = part[from_right and #part + 1 - i or i]
    found[#found + 1] = entry
    bytes_left = bytes_left - #entry
  end
  read, left, step = read + #part, left - #part, math.min(64, step * 2)
end
return found
