-- Pushes marked jobs: each to its queue, or to the schedule.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the queues with marked jobs
--       [4] how jobs have ended   [5 ..] of each group: the list of its queue, the two keys of its batch, what is known
--       of its jids (once.lua), the locks, results and windows (throttle.lua) of its jobs   and last the pushes that
--       have met a doubted lock, if there is a unique job
-- ARGV  per group of jobs that differ in what follows for each job only: how many they are; the number of
--       the key that they go to; the name of their queue; how many seconds from now they expire ('': their
--       payloads have no placeholder); when they expire, epoch seconds ('+inf' if that is not known, or never; '': they
--       are not marked); the number of the key before their locks, one for each ('': none); their class, for how many
--       seconds they have their locks from their due time on, and a letter: 'e' if the locks outlast the jobs, 'f' if a
--       job that is not pushed is not to be pushed later either (doubt.lua), else 'p'; the number of the key before
--       what is known of their jids, one for each ('': each push pushes a job); the number of the first key of their
--       batch ('': none), and the index of its member that pushes them ('': the batch's block does); the number of the
--       key before their results, one for each ('': none), the placeholder of these, and for how many milliseconds from
--       its due time on a job may wait until that is gone; the number of the key before their windows, one for each ('': none), and if they have some how many are pushed in how many
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
--- @include "push/results"

--- @include "push/jobs"

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
