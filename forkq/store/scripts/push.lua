-- Pushes marked jobs: each to its queue, or to the schedule.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the queues with marked jobs
--       [4] how jobs have ended   [5 ..] of each group: the list of its queue, the two keys of its batch, what is known
--       of its jids (once.lua), the locks of its jobs, and their windows (throttle.lua)   and last the pushes that have
--       met a doubted lock, if there is a unique job
-- ARGV  per group of jobs that differ in what follows for each job only: how many they are; the number of
--       the key that they go to; the name of their queue; how many seconds from now they expire ('': their
--       payloads have no placeholder); when they expire, epoch seconds ('+inf' if that is not known, or never; '': they
--       are not marked); the number of the key before their locks, one for each ('': none); their class, for how many
--       seconds they have their locks from their due time on, and a letter: 'e' if the locks outlast the jobs, 'f' if a
--       job that is not pushed is not to be pushed later either (doubt.lua), else 'p'; the number of the key before
--       what is known of their jids, one for each ('': each push pushes a job); the number of the first key of their
--       batch ('': none), and the index of its member that pushes them ('': the batch's block does); the number of the
--       key before their windows, one for each ('': none), and if they have some how many are pushed in how many
--       milliseconds
--       then per job: its payload; in the schedule when it is due, epoch seconds; its jid, if it has a lock or may be
--       known
-- Returns 1 if all was done; else 1 if the names of the queues are noted, then 1 for each job, or 2 if it was pushed
--         before; in the place of either the error of the refusal. For a job that is not pushed, since another
--         one has its lock, the jid of that one; '' if its window is used up.
--
-- Two placeholders, bytes that no JSON text has, give way to the moment in Redis's time, and to the index that
-- the job has in its batch.

--- @include "ended"
--- @include "lock"
--- @include "doubt"
--- @include "once"
--- @include "batch_members"
--- @include "throttle"

local MOMENT, INDEX, SCHEDULE = '\1', '\2', '2'
local unpack = table.unpack or unpack -- Lua 5.4 has the former
local replies, is_done, named = { 1 }, true, {}
local time = redis.call('TIME')
started = time[1] * 1000 + math.floor(time[2] / 1000)

local function is_error(reply) return type(reply) == 'table' and reply.err end

-- Adds the jobs to their queue, whose name is noted first: a queue without its name is not seen.
local function push(list, queue, first, batch)
  if not named[queue] then
    named[queue] = true
    local reply = redis.pcall('SADD', KEYS[1], queue)
    if is_error(reply) then replies[1], is_done = reply, false end
  end
  local reply = redis.pcall('LPUSH', list, unpack(batch))
  if not is_error(reply) and first ~= '' then redis.pcall('ZADD', KEYS[3], 'LT', first, queue) end
  return reply
end

--- @include "push/look"

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
    end
  end
  return i, batch, places
end

-- The group whose arguments begin there, and where its jobs begin.
local function group_at(i)
  local count, key, queue, after, first, locks, class, seconds, letter, known, members, via, windows, most,
    milliseconds = unpack(ARGV, i, i + 14)
  local group = { count = tonumber(count), key = key, queue = queue, first = first, class = class, via = via,
    seconds = seconds, letter = letter, most = most, milliseconds = milliseconds, taken = {}, new = {}, pushed = {} }
  group.moment = after ~= '' and string.format('%.6f', started / 1000 + after)
  group.locks, group.known, group.windows = tonumber(locks), tonumber(known), tonumber(windows)
  group.members, group.is_scheduled = tonumber(members), key == SCHEDULE
  group.has_jids = group.locks or group.known
  group.looks = group.has_jids or group.windows
  return group, i + (group.windows and 15 or 13)
end

-- Notes that so many jobs of the group were pushed.
local function note_pushed(group, count)
  if group.members then add_members(KEYS[group.members], count) end
  take_locks(group.taken, group.class, group.seconds, group.letter)
  for _, push_key in ipairs(group.new) do note_push(push_key) end
  for window, count in pairs(group.pushed) do note_in_window(window, count, group.most, group.milliseconds) end
end

local function add(group, batch)
  local key = KEYS[tonumber(group.key)]
  if group.is_scheduled then return redis.pcall('ZADD', key, unpack(batch)) end
  return push(key, group.queue, group.moment or group.first, batch)
end

-- Pushes the group whose arguments begin there. Returns where those of the next one begin.
local function push_group(i)
  local group, first_job = group_at(i)
  local members = group.members
  if members then group.index, group.finished = next_member(KEYS[members], KEYS[members + 1], group.via) end
  local next_one, batch, places = read_jobs(group, first_job)
  if #places == 0 then return next_one end
  local reply = add(group, batch)
  if is_error(reply) then
    for _, place in ipairs(places) do replies[place], is_done = reply, false end
  else
    note_pushed(group, #places)
  end
  return next_one
end

local i = 1
while i <= #ARGV do i = push_group(i) end
return is_done and 1 or replies
