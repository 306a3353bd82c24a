-- Returns each job of a dead owner to its queue, with its crash record, schedules it, or buries it.
--
-- KEYS  [1] the dead set   [2] the owner's note   [3] the set of queue names
--       then per queue: its list, its in-flight hash   [last] the schedule
-- ARGV  [1] now, epoch seconds   [2] dead entries older than this are dropped   [3] how many to keep
--       [4] how long the note lasts, seconds; 0: no note, for this owner will never read it
--       then per job: queue number, lease, 'requeue', 'bury' or when it is due (epoch seconds), how
--       many bytes to keep of the payload in Redis, what to append to them, its name for the note
--       The caller lists each queue's newest lease first, so that the oldest ends at the head.
-- Returns how many jobs were moved; a job without a lease was moved by another process. If a key
--          to add to holds another type, the script moves all other jobs and then returns the error.
--
-- To keep -1 bytes is to keep all but the last one; 0 keeps none. So a large payload stays in Redis.
-- The note is a hash, sequence number -> name, of each lease that was removed.
-- Each lease is removed after its job was added, and the HDEL of nothing comes first: see retry.lua.
-- The note is written after that and may fail: it must not name a lease that still exists, and must
-- not keep a job from its queue. A queue that was deleted while its job was in flight is added to the
-- queue names again.

local call, pcall, KEYS, ARGV = redis.call, redis.pcall, KEYS, ARGV
local moved, buried, problem = 0, false, nil
local woken, named = {}, {} -- by queue

local function note(lease, name)
  pcall('HSET', KEYS[2], lease:match('[^/]*$'), name)
  pcall('EXPIRE', KEYS[2], ARGV[4])
end

-- Once per queue, before the first job moves: wakes the children that wait for a permit.
local function wake(queue, inflight)
  if woken[queue] then return end
  woken[queue] = true
  local mark = inflight:sub(1, -9)
  call('HDEL', inflight, '')
  call('DEL', mark .. 'full', mark .. 'busy')
end

local function put(queue, verdict, payload)
  if verdict == 'bury' then return pcall('ZADD', KEYS[1], ARGV[1], payload) end
  if verdict ~= 'requeue' then return pcall('ZADD', KEYS[#KEYS], verdict, payload) end
  if not named[queue] then
    named[queue] = true
    pcall('SADD', KEYS[3], KEYS[3 + 2 * queue]:match('{queue:(.*)}:inflight$'))
  end
  return pcall('RPUSH', KEYS[2 + 2 * queue], payload)
end

for i = 5, #ARGV, 6 do
  local queue, lease, verdict = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  local keep, payload = tonumber(ARGV[i + 3]), ARGV[i + 4]
  local inflight = KEYS[3 + 2 * queue]
  local stands = keep == 0 and call('HEXISTS', inflight, lease) == 1
  local before = keep ~= 0 and call('HGET', inflight, lease)
  if stands or before then
    if before then payload = before:sub(1, keep - 1) .. payload end
    wake(queue, inflight)
    local reply = put(queue, verdict, payload)
    if type(reply) == 'table' and reply.err then
      problem = reply
    else
      moved = moved + 1
      buried = buried or verdict == 'bury'
      call('HDEL', inflight, lease)
      if ARGV[4] ~= '0' then note(lease, ARGV[i + 5]) end
    end
  end
end
if buried then
  call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2])
  call('ZREMRANGEBYRANK', KEYS[1], 0, -tonumber(ARGV[3]) - 1)
end
return problem or moved
