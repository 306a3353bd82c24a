-- Pushes marked jobs: each to its queue, or to the schedule.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the queues with marked jobs
--       [4] how jobs have ended   [5 ..] the list of each queue   then the locks of unique jobs, and
--       the pushes that have met a doubted lock
-- ARGV  per job: the number of its queue from 1 on, and its name; when it is due, epoch seconds ('' for
--       now); how many seconds from now it expires (0: its payload has no placeholder); its payload; the
--       number of the key of its lock (0: none). With a lock, further: its jid, its class, for how many
--       seconds it has the lock from its due time on, and a letter: 'e' if the lock outlasts the job, 'f' if
--       a job that is not pushed is not to be pushed later either (doubt.lua), else 'p'
-- Returns 1 if the names of the queues are noted, then 1 for each job; in the place of either the error
--         of the refusal. For a job that is not pushed, since another one has its lock, the jid of that one.
--
-- The placeholder, a byte that no JSON text has, gives way to the moment in Redis's time.

--- @include "marked"
--- @include "ended"
--- @include "lock"
--- @include "doubt"

local MOMENT = '\1'
local unpack = table.unpack or unpack -- Lua 5.4 has the former
local seconds, micros = unpack(redis.call('TIME'))
local now = seconds + micros / 1000000 -- only compared and printed with %f
started = seconds * 1000 + math.floor(micros / 1000)
local replies, named, noted = { 1 }, {}, {}

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
  if not noted[queue] or payload:find('"expires_at"', 1, true) then
    noted[queue] = true
    note_if_marked(KEYS[3], queue, payload)
  end
  return 1
end

local function schedule(at, payload)
  local reply = redis.pcall('ZADD', KEYS[2], at, payload)
  return is_error(reply) and reply or 1
end

local function stamped(payload, expires_in)
  if expires_in == '0' then return payload end
  return (payload:gsub(MOMENT, string.format('%.6f', now + expires_in)))
end

local function add(list, queue, at, expires_in, payload)
  payload = stamped(payload, expires_in)
  return at == '' and push(list, queue, payload) or schedule(at, payload)
end

-- Adds the job with that jid, unless another one has the lock. A lock that holds another type is left out.
local function add_with_lock(lock, jid, class, seconds, kind, list, queue, at, expires_in, payload)
  local holder = holder_of(lock)
  if is_error(holder) then
    count_end(KEYS[4], 'damaged', '(feature)')
    return add(list, queue, at, expires_in, payload)
  end
  if holder ~= '' and holder ~= jid then
    count_end(KEYS[4], 'duplicate', class)
    note_if_doubted(KEYS[#KEYS], lock, at, kind ~= 'f' and stamped(payload, expires_in))
    return holder
  end
  local reply = add(list, queue, at, expires_in, payload)
  local delay = math.max(0, (tonumber(at) or now) - now)
  if reply == 1 then
    take_lock(lock, jid, class, 1000 * (delay + seconds), holder == '', kind == 'e')
  end
  return reply
end

local i = 1
while i <= #ARGV do
  local list, lock, job = KEYS[ARGV[i] + 4], KEYS[tonumber(ARGV[i + 5])], i + 1
  if lock then
    local jid, class, seconds, kind = unpack(ARGV, i + 6, i + 9)
    replies[#replies + 1] = add_with_lock(lock, jid, class, seconds, kind, list, unpack(ARGV, job, job + 3))
    i = i + 10
  else
    replies[#replies + 1] = add(list, unpack(ARGV, job, job + 3))
    i = i + 6
  end
end
return replies
