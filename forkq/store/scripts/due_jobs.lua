-- Moves jobs that are due from a sorted set to their queues, and returns those to move next.
--
-- KEYS  [1] the schedule or retry set   [2] the set of queue names   [3] the dead set
--       [4] the set of the queues that have suspects   [5] the queues with marked jobs
--       [6] how jobs have ended   then per queue: its list, its list of suspects; then those of the
--       jobs' effects
-- ARGV  [1] now, epoch seconds   [2] how many members to return at most   [3] and about how many bytes
--       then per job: number of its queue (0 buries it, -1: it has expired), behind that and a space its
--       effects (effects.lua); 1 if it must run alone, its rank ('' if it was returned whole), member,
--       new payload (its class if it has expired). A member that was not returned whole is moved unchanged:
--       its beginning and its length stand in the place of the last two
-- Returns when the first job is due that is not among those returned, epoch seconds ('' if there is
-- none, now if the script did not look), then the queues that refused jobs, then the members that
-- are due now, in order of time. Of a member above 256 KiB it returns rank, length, beginning and end.
--
-- A job is moved only if this very member was still there. The first write is a removal, so that a
-- full server takes the rest. Redis does not undo a script that fails: so the script catches what may
-- fail after the removal, and adds the job elsewhere.

local LARGE, HEAD, TAIL = 262144, 512, 4096
local PLAIN, ALONE = 5, 6 -- the lists of queue q are KEYS[2 * q + PLAIN] and KEYS[2 * q + ALONE]
local EXPIRED = -1
local batches, refusing = {}, {}
local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "marked"
--- @include "effects"

local function is_refused(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end

local function bury(payload)
  if is_refused('ZADD', KEYS[3], ARGV[1], payload) then
    redis.call('ZADD', KEYS[1], ARGV[1] + 60, payload) -- tries again in a minute
  end
end

-- The large member with that rank, length and beginning; nothing if it has moved.
local function large_member(rank, head, length)
  local member, score = unpack(redis.call('ZRANGE', KEYS[1], rank, rank, 'WITHSCORES'))
  local is_due = member and tonumber(score) <= tonumber(ARGV[1])
  return is_due and #member == tonumber(length) and member:sub(1, HEAD) == head and member
end

local function add(queue, kind, payload)
  local key = 2 * queue + kind
  batches[key] = batches[key] or { queue = queue, kind = kind }
  table.insert(batches[key], payload)
end

-- The members that were not returned whole, by their place in ARGV: found while all ranks are right.
local function large_members()
  local found = {}
  for i = 4, #ARGV, 5 do
    local rank, head, length = ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    if rank ~= '' then found[i] = large_member(rank, head, length) end
  end
  return found
end

local function move(queue, is_suspect, member, payload, effects)
  if not member or redis.call('ZREM', KEYS[1], member) == 0 then return end
  if queue == 0 then return bury(payload) end
  write(look_at(effects))
  if queue == EXPIRED then return count_end(KEYS[6], 'expired', payload) end
  add(queue, is_suspect and ALONE or PLAIN, payload)
end

-- Where forkq writes the flag; in the arguments the same text only makes the job run alone.
local function has_flag(member) return member and member:sub(-TAIL):find('"suspect"%s*:%s*true') end

local function push(key, batch)
  if not is_refused('LPUSH', KEYS[key], unpack(batch)) then
    local name = KEYS[2 * batch.queue + ALONE]:match('{queue:(.*)}:suspects$')
    redis.pcall('SADD', KEYS[batch.kind == ALONE and 4 or 2], name)
    for _, payload in ipairs(batch) do note_if_marked(KEYS[5], name, payload) end
    return true
  end
end

local large = large_members()
for i = 4, #ARGV, 5 do
  local number, effects = ARGV[i]:match('^(%S+) ?(.*)$')
  local queue = tonumber(number)
  if ARGV[i + 2] ~= '' then
    move(queue, has_flag(large[i]), large[i], large[i])
  else
    move(queue, ARGV[i + 1] == '1', ARGV[i + 3], ARGV[i + 4], effects)
  end
end

for key, batch in pairs(batches) do
  local is_moved = push(key, batch) -- else the key holds another type
  if not is_moved and batch.kind == ALONE then is_moved = push(2 * batch.queue + PLAIN, batch) end
  if not is_moved then
    refusing[#refusing + 1] = KEYS[2 * batch.queue + ALONE]:match('{queue:(.*)}:suspects$')
    for _, payload in ipairs(batch) do
      if is_refused('ZADD', KEYS[1], ARGV[1] + 60, payload) then bury(payload) end
    end
  end
end

--- @include "due_jobs/next"
return answer
