-- Part of jobs_move.lua: takes entries out of a list, or replaces them.
--
-- To remove one entry, Redis reads a list from its end to there. So a mark takes the place of each that
-- is removed, and all marks are removed at once, from the end that is nearer. Others fetch and return
-- jobs meanwhile, at the ends of the list, so its entries move together: the last one that was read
-- shows where the others are, and one that is not there has left. No other client ever sees a mark.

--- @include "place_in_list"

local MARK, AROUND, LOST = '\0removed by jobs_move', 256, 'lost'
local marks, places, from_left = 0, nil, false

-- Notes the places of the entries, counted from the right end: what is pushed meanwhile changes
-- nothing. Equal entries have a place each.
local function find_places()
  local count, size = tonumber(ARGV[6]), redis.call('LLEN', KEYS[1])
  local last = index_in(KEYS[1], ARGV[8], size, math.max(0, size - tonumber(ARGV[5]) - count))
  if not last then return end
  local first = math.max(0, last - AROUND)
  places, from_left = {}, 2 * last < size
  for i, entry in ipairs(redis.call('LRANGE', KEYS[1], first, last + count + AROUND)) do
    places[entry] = { first + i - 1 - size, places[entry] }
  end
  redis.call('LTRIM', KEYS[1], 0, -1) -- nothing: a full server refuses LSET unless it comes later
end

-- The place of the entry that was removed, true if it has none, false if it has left, LOST if that
-- is not known.
local function take_from_list(entry)
  if ARGV[8] == '' then return redis.call('LREM', KEYS[1], -1, entry) == 1 end
  if not places then return LOST end
  if not places[entry] then return false end
  local place, equal = unpack(places[entry])
  places[entry] = equal
  redis.call('LSET', KEYS[1], place, MARK)
  marks = marks + 1
  return place
end

local function back_to_list(entry, place)
  if place == true then return redis.call('RPUSH', KEYS[1], entry) end
  marks = marks - 1
  redis.call('LSET', KEYS[1], place, entry)
end

local function remove_marks()
  if marks > 0 then redis.call('LREM', KEYS[1], from_left and marks or -marks, MARK) end
end

local function replace_in_list(entry, payload)
  local index = redis.call('LPOS', KEYS[1], entry, 'RANK', -1)
  if index then redis.call('LSET', KEYS[1], index, payload) end
  return index and 1 or 0
end
