-- Part of jobs_move.lua: takes entries out of a list, or replaces them.
--
-- To remove one entry, Redis reads a list from its end to there. So a mark takes the place of each that
-- is removed, and all marks are removed at once, from the end that is nearer. An entry that has moved,
-- because others were fetched, is looked for; one that is not found near is removed by itself, or not at
-- all. No other client ever sees a mark.

local MARK, DRIFT, ELSEWHERE = '\0removed by jobs_move', 256, 'elsewhere'
local marks, places, from_left = 0, {}, false

-- Notes where the entries stand, counted from the right end: what is pushed meanwhile changes nothing.
local function find_places()
  local first, count = tonumber(ARGV[5]), tonumber(ARGV[6])
  local nearest = math.max(0, first - DRIFT)
  local found = redis.call('LRANGE', KEYS[1], -(first + count), -(nearest + 1))
  for i, entry in ipairs(found) do places[entry] = -(nearest + #found - i + 1) end
  from_left = 2 * nearest > redis.call('LLEN', KEYS[1])
  redis.call('LTRIM', KEYS[1], 0, -1) -- nothing: a full server refuses LSET unless it comes later
end

-- The place of the entry that was removed, true if it has none, false if it was not there,
-- ELSEWHERE if it may be there.
local function take_from_list(entry)
  local place = places[entry]
  if place then
    places[entry] = nil
    redis.call('LSET', KEYS[1], place, MARK)
    marks = marks + 1
    return place
  end
  if ARGV[8] == '1' then return ELSEWHERE end
  places = {} -- they are others now
  return redis.call('LREM', KEYS[1], -1, entry) == 1
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
