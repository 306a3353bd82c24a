-- Part of cancelled_jobs.lua and find_jobs.lua: reads a part of a list of which nothing is known.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

-- A key of another type is none of forkq. Any other error is raised.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if reply.err:find('WRONGTYPE', 1, true) then return nil end
  error(reply.err)
end

-- The entries from `from` on, counted from the left end: `most` of them, and about so many bytes, at most.
-- Further where to go on ('' at the end), how many entries are behind them, how many they are, and the first.
local function part_of_list(list, from, most, bytes_left)
  local size, step = read('LLEN', list) or 0, 4
  local page = {}
  while #page < most and bytes_left > 0 and from + #page < size do
    local first = from + #page
    local part = redis.call('LRANGE', list, first, first + math.min(step, most - #page) - 1)
    for _, payload in ipairs(part) do
      page[#page + 1], bytes_left = payload, bytes_left - #payload
    end
    step = math.min(512, 2 * step)
  end
  local behind = size - from - #page
  return page, { behind > 0 and tostring(from + #page) or '', behind, #page, page[1] or '' }
end
