-- Pushes marked jobs: each to its queue, or to the schedule.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the queues with marked jobs
--       [4] how jobs have ended   then of each group: the list of its queue, if it goes there, and the keys of its
--       parts   and last the pushes that have met a doubted lock, if there is a unique job
-- ARGV  [1] the letters of all parts that the groups have
--       per group of jobs that differ in what follows for each job only: how many they are; the name of their queue
--       ('': they go to the schedule); how many seconds from now they expire ('': their payloads have no
--       placeholder); when they expire, epoch seconds ('+inf' if that is not known, or never; '': they
--       are not marked); their class; the letters of their parts, in the order below; the arguments of each part
--       then per job: its payload; in the schedule when it is due, epoch seconds; its jid, if a part needs that
-- Returns 1 if all was done; else 1 if the names of the queues are noted, then 1 for each job, or 2 if it was pushed
--         before; in the place of either the error of the refusal. For a job that is not pushed, since another
--         one has its lock, the jid of that one; '' if its window is used up.
--
-- A placeholder, a byte that no JSON text has, gives way to the moment in Redis's time.
--
-- A part is what a feature of the jobs asks in their push. Only those that this call needs are defined: to define all
-- would take longer than to push a job. A part has some of these functions:
--   begin(i, before, count, class)  A group has the part: its arguments begin at `i`, its keys behind `before`. Returns
--                                   where its arguments end, the number of its last key, and true if it
--                                   needs the jids.
--   look(number, payload, at, jid)  Whether the job of that number is pushed. Returns nothing if it is, else the reply
--                                   for it, and true if it may be pushed later. It changes nothing in Redis.
--   take(number, payload, at, jid)  The job is to be pushed. May return another payload.
--   write(count)                    So many jobs were pushed: all that it has taken of the group.

local MOMENT = '\1'
local unpack = table.unpack or unpack -- Lua 5.4 has the former
local replies, is_done = { 1 }, true
local named -- the queue whose name was noted last
local note_holder -- notes for a job of the group which other one has its lock: push/known.lua
local uses, parts = {}, {}
for n = 1, #ARGV[1] do uses[ARGV[1]:sub(n, n)] = true end

--- @include "now"
--- @include "ended"

if uses.b then
--- @include "push/batch"
end

if uses.k then
--- @include "push/known"
end

if uses.l then
--- @include "push/lock"
end

if uses.w then
--- @include "push/window"
end

if uses.r then
--- @include "push/result"
end

--- @include "push/jobs"

-- Adds the jobs to the schedule; or to their queue, whose name is noted first: a queue without its name is not seen.
local function add(key, queue, first, batch)
  if queue == '' then return redis.pcall('ZADD', key, unpack(batch)) end
  if named ~= queue then
    named = queue
    local reply = redis.pcall('SADD', KEYS[1], queue)
    if type(reply) == 'table' then replies[1], is_done = reply, false end
  end
  local reply = redis.pcall('LPUSH', key, unpack(batch))
  if type(reply) == 'number' and first ~= '' then redis.pcall('ZADD', KEYS[3], 'LT', first, queue) end
  return reply
end

-- Pushes the group whose arguments begin at `i`, and whose keys begin behind `before`. Returns where those of the next
-- one do.
local function push_group(i, before)
  local count, queue, after, first, class, letters = unpack(ARGV, i, i + 5)
  local moment, is_scheduled = after ~= '' and string.format('%.6f', now_in_ms() / 1000 + after), queue == ''
  local group, key, has_jids = {}, is_scheduled and KEYS[2] or KEYS[before + 1], nil
  i, before, count, note_holder = i + 6, is_scheduled and before or before + 1, tonumber(count), nil
  for n = 1, #letters do
    local part, with_jids = parts[letters:sub(n, n)], nil
    i, before, with_jids = part.begin(i, before, count, class)
    group[n], has_jids = part, has_jids or with_jids
  end
  local next_one, batch, pushed = read_jobs(group, i, count, is_scheduled, has_jids, moment)
  local reply = pushed > 0 and add(key, queue, moment or first, batch)
  if type(reply) == 'table' then
    is_done = false
    for n = #replies - count + 1, #replies do replies[n] = replies[n] == 1 and reply or replies[n] end
  elseif reply then
    for n = 1, #group do
      if group[n].write then group[n].write(pushed) end
    end
  end
  return next_one, before
end

local i, before = 2, 4
while i <= #ARGV do i, before = push_group(i, before) end
return is_done and 1 or replies
