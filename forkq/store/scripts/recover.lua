-- Gives the jobs of a dead owner back, each with its crash record, or buries it.
--
-- KEYS  [1] the dead set   [2] the owner's note   [3] the set of queue names
--       then per queue: its list, its in-flight hash
-- ARGV  [1] now, epoch seconds   [2] older than this is dropped from the dead set   [3] how many to keep
--       [4] how long the note lasts, seconds; 0: no note, for this owner will never read it
--       then per job: queue number, lease, 'requeue' or 'bury', how many bytes to keep of the payload
--       as it stands, what comes after them, its name for the note
--       The caller lists each queue's newest lease first, so that the oldest ends at the head.
-- Returns how many jobs were moved; one whose lease is gone has been moved by somebody else. If the
--          place of one is taken by something else, an error, once all others have been moved.
--
-- To keep -1 bytes is to keep all but the last one, 0 none: a payload that is large stays here.
-- The note, a hash: sequence number -> name, of each lease that was taken.
-- Each lease goes last, and first nothing is removed: see retry.lua. The note comes after it and may
-- fail: it must neither tell of a lease that stands, nor keep a job from going back.
-- A queue that was deleted while its job was in flight is a queue again.

local call, pcall, KEYS, ARGV = redis.call, redis.pcall, KEYS, ARGV
local moved, buried, problem = 0, false, nil
local touched, named = {}, {} -- by queue

local function note(lease, name)
  pcall('HSET', KEYS[2], lease:match('[^/]*$'), name)
  pcall('EXPIRE', KEYS[2], ARGV[4])
end

-- Once per queue, before the first job moves: whoever waits for a slot or for the queue's rest is woken.
local function touch(queue, inflight)
  if touched[queue] then return end
  touched[queue] = true
  local mark = inflight:sub(1, -9)
  call('HDEL', inflight, '')
  call('DEL', mark .. 'full', mark .. 'busy')
end

local function put(queue, verdict, payload)
  if verdict == 'bury' then return pcall('ZADD', KEYS[1], ARGV[1], payload) end
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
    touch(queue, inflight)
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
