-- Part of push.lua: reads the jobs of a group.

local function with_index(payload, index)
  local at = payload:find(INDEX, 1, true)
  return at and payload:sub(1, at - 1) .. index .. payload:sub(at + 1) or payload
end

-- Reads the jobs of the group, which begin there, and looks whether they are pushed. Returns where those of the
-- next group begin, and what is pushed: for LPUSH or ZADD, and the places of the replies about that.
local function read_jobs(group, i)
  local batch, places = {}, {}
  for number = 1, group.count do
    local payload, at, jid = ARGV[i], nil, nil
    if group.moment then payload = payload:gsub(MOMENT, group.moment) end
    if group.is_scheduled then i, at = i + 1, ARGV[i + 1] end
    if group.has_jids then i, jid = i + 1, ARGV[i + 1] end
    i = i + 1
    local reply = group.finished or group.looks and look(group, number, payload, at, jid)
    replies[#replies + 1] = reply or 1
    if reply then
      is_done = false
    else
      if at then batch[#batch + 1] = at end
      if group.index then payload = with_index(payload, group.index + #places) end
      batch[#batch + 1], places[#places + 1] = payload, #replies
      if group.results then group.waits[#group.waits + 1] = { group.results + number, at } end
    end
  end
  return i, batch, places
end

-- The group whose arguments begin there, and where its jobs begin.
local function group_at(i)
  local count, key, queue, after, first, locks, class, seconds, letter, known, members, via = unpack(ARGV, i, i + 11)
  local results, placeholder, waits_for, windows, most, milliseconds = unpack(ARGV, i + 12, i + 17)
  local group = { count = tonumber(count), key = key, queue = queue, first = first, class = class, via = via,
    seconds = seconds, letter = letter, most = most, milliseconds = milliseconds, taken = {}, new = {}, pushed = {} }
  group.moment = after ~= '' and string.format('%.6f', started / 1000 + after)
  group.locks, group.known, group.windows = tonumber(locks), tonumber(known), tonumber(windows)
  group.results, group.waits, group.placeholder, group.waits_for = tonumber(results), {}, placeholder, waits_for
  group.members, group.is_scheduled = tonumber(members), key == SCHEDULE
  group.has_jids = group.locks or group.known
  group.looks = group.has_jids or group.windows
  return group, i + (group.windows and 18 or 16)
end

-- Notes that so many jobs of the group were pushed.
local function note_pushed(group, count)
  if group.members then add_members(KEYS[group.members], count) end
  take_locks(group.taken, group.class, group.seconds, group.letter)
  for _, push_key in ipairs(group.new) do note_push(push_key) end
  await_results(group.waits, group.placeholder, group.waits_for)
  for window, count in pairs(group.pushed) do note_in_window(window, count, group.most, group.milliseconds) end
end

local function add(group, batch)
  local key = KEYS[tonumber(group.key)]
  if group.is_scheduled then return redis.pcall('ZADD', key, unpack(batch)) end
  return push(key, group.queue, group.moment or group.first, batch)
end
