-- Pushes marked jobs: each to its queue, or to the schedule.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the queues with marked jobs
--       [4 ..] the list of each queue
-- ARGV  per job: the number of its queue from 1 on, and its name; when it is due, epoch seconds ('' for
--       now); how many seconds from now it expires (0: its payload has no placeholder); its payload
-- Returns 1 if the names of the queues are noted, then 1 for each job; in the place of either the error
--         of the refusal.
--
-- The placeholder, a byte that no JSON text has, gives way to the moment in Redis's time.

--- @include "marked"

local MOMENT = '\1'
local unpack = table.unpack or unpack -- Lua 5.4 has the former
local seconds, micros = unpack(redis.call('TIME'))
local now = seconds + micros / 1000000 -- only compared and printed with %f
local replies, named = { 1 }, {}

local function is_error(reply) return type(reply) == 'table' and reply.err end

-- Before the first job: a queue without its name is not seen.
local function name(queue)
  if named[queue] then return end
  named[queue] = true
  local reply = redis.pcall('SADD', KEYS[1], queue)
  if is_error(reply) then replies[1] = reply end
end

local function push(list, queue, payload)
  name(queue)
  local reply = redis.pcall('LPUSH', list, payload)
  if is_error(reply) then return reply end
  note_if_marked(KEYS[3], queue, payload)
  return 1
end

local function schedule(at, payload)
  local reply = redis.pcall('ZADD', KEYS[2], at, payload)
  return is_error(reply) and reply or 1
end

for i = 1, #ARGV, 5 do
  local list, queue, at, expires_in, payload = KEYS[ARGV[i] + 3], unpack(ARGV, i + 1, i + 4)
  if expires_in ~= '0' then
    payload = payload:gsub(MOMENT, string.format('%.6f', now + expires_in))
  end
  replies[#replies + 1] = at == '' and push(list, queue, payload) or schedule(at, payload)
end
return replies
