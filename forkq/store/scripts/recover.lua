-- Returns each job of a dead owner to its queue, or to the queue's list of suspects with a crash record;
-- schedules it, or buries it.
--
-- KEYS  [1] the dead set   [2] the owner's note   [3] the set of queue names   [4] the schedule
--       [5] the set of the queues that have suspects
--       then per queue: its list, its in-flight hash, the mark of those that wait for the end of
--       its jobs, its list of suspects; then those of the jobs' effects
-- ARGV  [1] now, epoch seconds   [2] dead entries older than this are dropped   [3] how many to keep
--       [4] how long the note lasts, seconds; 0: no note, for this owner will never read it
--       then per job: queue number, lease, where to, how many bytes to keep of the payload in Redis,
--       what to append to them, what stood in the place of that when the caller read it ('': do not compare), its
--       name for the note
--       Where to: 'requeue' (to the head of its list), 'isolate' (to the head of its list of suspects),
--       'isolate_last' (to the tail), 'bury', or when it is due (epoch seconds); behind 'bury' and a space
--       the effects of the job (effects.lua)
--       The caller lists each queue's newest lease first, so that the oldest ends at the head.
-- Returns how many jobs were moved; a job without a lease was moved by another process. If a key
--          to add to holds another type, the script moves all other jobs and then returns the error.
--          For a damaged list of suspects, the queue's own list serves. If keys of features hold another
--          type, a list of the number and of these keys.
--
-- A payload that has changed since it was read, by a late command of the owner, goes back as it is: the job
-- has gained what its end must know, or another job runs by this lease (ticket_start.lua), which has not begun.
-- To keep -1 bytes is to keep all but the last one; 0 keeps none. So a large payload stays in Redis.
-- The note is a hash, sequence number -> name, of each lease that was removed.
-- Each lease is removed after its job was added, and the HDEL of nothing comes first: see retry.lua.
-- The note is written after that and may fail: it must not name a lease that still exists, and must
-- not keep a job from its queue. A queue that was deleted while its job was in flight is added to the
-- queue names again.

local call, pcall, KEYS, ARGV = redis.call, redis.pcall, KEYS, ARGV
local unpack = table.unpack or unpack -- Lua 5.4 has the former
local moved, buried, problem = 0, false, nil
local woken, named = {}, {} -- by queue
local LIST, INFLIGHT, MARK, SUSPECTS = 2, 3, 4, 5 -- the list of queue q is KEYS[4 * q + LIST]

--- @include "effects"

local function is_error(reply) return type(reply) == 'table' and reply.err end

local function note(lease, name)
  pcall('HSET', KEYS[2], lease:match('[^/]*$'), name)
  pcall('EXPIRE', KEYS[2], ARGV[4])
end

-- Once per queue, before the first job moves: wakes the children that wait for a permit.
local function wake(queue)
  if woken[queue] then return end
  woken[queue] = true
  call('HDEL', KEYS[4 * queue + INFLIGHT], '')
  call('DEL', KEYS[4 * queue + MARK])
end

-- Adds the name of the queue to the set KEYS[set], once.
local function name(queue, set)
  if named[set .. ' ' .. queue] then return end
  named[set .. ' ' .. queue] = true
  pcall('SADD', KEYS[set], KEYS[4 * queue + INFLIGHT]:match('{queue:(.*)}:inflight$'))
end

local function requeue(queue, payload)
  name(queue, 3)
  return pcall('RPUSH', KEYS[4 * queue + LIST], payload)
end

local function isolate(queue, push, payload)
  local reply = pcall(push, KEYS[4 * queue + SUSPECTS], payload)
  if is_error(reply) then return requeue(queue, payload) end
  name(queue, 3)
  name(queue, 5)
  return reply
end

local function put(queue, where, payload)
  if where == 'requeue' then return requeue(queue, payload) end
  if where == 'isolate' then return isolate(queue, 'RPUSH', payload) end
  if where == 'isolate_last' then return isolate(queue, 'LPUSH', payload) end
  if where == 'bury' then return pcall('ZADD', KEYS[1], ARGV[1], payload) end
  return pcall('ZADD', KEYS[4], where, payload)
end

-- Where the job goes, its effects, and its payload, of which `before` is in Redis.
local function move_of(i, before)
  local where, effects = ARGV[i + 2]:match('^(%S+) ?(.*)$')
  local keep, read = tonumber(ARGV[i + 3]), ARGV[i + 5]
  if read ~= '' and before:sub(keep) ~= read then
    return where == 'requeue' and where or 'isolate', '', before
  end
  return where, effects, (keep == 0 and '' or before:sub(1, keep - 1)) .. ARGV[i + 4]
end

for i = 5, #ARGV, 7 do
  local queue, lease = tonumber(ARGV[i]), ARGV[i + 1]
  local inflight = KEYS[4 * queue + INFLIGHT]
  local before = call('HGET', inflight, lease)
  if before then
    local where, effects, payload = move_of(i, before)
    local looks = look_at(effects)
    wake(queue)
    local reply = put(queue, where, payload)
    if is_error(reply) then
      problem = reply
    else
      moved = moved + 1
      buried = buried or where == 'bury'
      write(looks)
      call('HDEL', inflight, lease)
      if ARGV[4] ~= '0' then note(lease, ARGV[i + 6]) end
    end
  end
end
if buried then
  call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2])
  call('ZREMRANGEBYRANK', KEYS[1], 0, -tonumber(ARGV[3]) - 1)
end
return problem or with_damaged_keys(moved)
