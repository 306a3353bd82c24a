-- Pushes marked jobs: each to its queue, or to the schedule.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the queues with marked jobs
--       [4] how jobs have ended   [5 ..] the list of each queue   then the locks of unique jobs, and
--       the pushes that have met a doubted lock, if there is a unique job
-- ARGV  per group of jobs that differ in what follows for each job only: how many they are; the number of
--       the key that they go to; the name of their queue; how many seconds from now they expire ('': their
--       payloads have no placeholder); when they expire, epoch seconds ('+inf' if that is not known, or never); the
--       number of the key before their locks, one for each ('': none); their class, for how many seconds they
--       have their locks from their due time on, and a letter: 'e' if the locks outlast the jobs, 'f' if a job
--       that is not pushed is not to be pushed later either (doubt.lua), else 'p'
--       then per job: its payload; in the schedule when it is due, epoch seconds; with a lock its jid
-- Returns 1 if all was done; else 1 if the names of the queues are noted, then 1 for each job; in the place
--         of either the error of the refusal. For a job that is not pushed, since another one has its lock,
--         the jid of that one.
--
-- The placeholder, a byte that no JSON text has, gives way to the moment in Redis's time.

--- @include "ended"
--- @include "lock"
--- @include "doubt"

local MOMENT, SCHEDULE = '\1', '2'
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
  if not is_error(reply) then redis.pcall('ZADD', KEYS[3], 'LT', first, queue) end
  return reply
end

-- The jid of the other job that has the lock; nothing if the job may be pushed, and `taken` has its lock then.
-- A lock that holds another type is left out. What a server says of locks that has lost its role, or its
-- replicas, is as old as that: its refusal counts.
local function look_at_lock(taken, lock, jid, class, at, payload)
  local holder = taken[lock] or holder_of(lock)
  if is_error(holder) then
    count_end(KEYS[4], 'damaged', '(feature)')
    return nil
  end
  if holder ~= '' and holder ~= jid then
    local refusal = is_error(count_end(KEYS[4], 'duplicate', class))
    if refusal and (refusal:find('READONLY', 1, true) or refusal:find('NOREPLICAS', 1, true)) then
      return { err = refusal }
    end
    if not taken[lock] then note_if_doubted(KEYS[#KEYS], lock, at or '', payload) end
    return holder
  end
  taken[lock] = jid
  taken[#taken + 1] = { lock, jid, holder == '', at }
end

local function take_locks(taken, class, seconds, letter)
  for _, each in ipairs(taken) do
    local lock, jid, is_new, at = unpack(each, 1, 4)
    local delay = at and math.max(0, 1000 * at - started) or 0
    take_lock(lock, jid, class, delay + 1000 * seconds, is_new, letter == 'e')
  end
end

-- Pushes the group whose arguments begin there. Returns where those of the next one begin.
local function push_group(i)
  local count, key, queue, after, first, locks, class, seconds, letter = unpack(ARGV, i, i + 8)
  local moment = after ~= '' and string.format('%.6f', started / 1000 + after)
  local batch, places, taken = {}, {}, {}
  i = i + 9
  for number = 1, count do
    local payload, at, holder = ARGV[i], nil, nil
    if moment then payload = payload:gsub(MOMENT, moment) end
    if key == SCHEDULE then i, at = i + 1, ARGV[i + 1] end
    if locks ~= '' then
      i = i + 1
      holder = look_at_lock(taken, KEYS[locks + number], ARGV[i], class, at, letter ~= 'f' and payload)
    end
    i = i + 1
    replies[#replies + 1] = holder or 1
    if holder then
      is_done = false
    else
      if at then batch[#batch + 1] = at end
      batch[#batch + 1], places[#places + 1] = payload, #replies
    end
  end
  if #places == 0 then return i end
  local reply
  if key == SCHEDULE then
    reply = redis.pcall('ZADD', KEYS[tonumber(key)], unpack(batch))
  else
    reply = push(KEYS[tonumber(key)], queue, moment or first, batch)
  end
  if is_error(reply) then
    for _, place in ipairs(places) do replies[place], is_done = reply, false end
  elseif #taken > 0 then
    take_locks(taken, class, seconds, letter)
  end
  return i
end

local i = 1
while i <= #ARGV do i = push_group(i) end
return is_done and 1 or replies
