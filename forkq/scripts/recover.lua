-- Gives the jobs of a dead owner back, each with its crash record, or buries it.
--
-- KEYS  [1] the dead set   [2] the owner's note   then per queue: its list, its in-flight hash
-- ARGV  [1] now, epoch seconds   [2] older than this is dropped from the dead set   [3] how many to keep
--       [4] how long the note lasts, seconds; 0: no note, for this owner will never read it
--       then per job: queue number, lease, 'requeue' or 'bury', the new payload, its name for the note
--       The caller lists each queue's newest lease first, so that the oldest ends at the head.
-- Returns how many jobs were moved; one whose lease is gone has been moved by somebody else. If the
--          place of one is taken by something else, an error, once all others have been moved.
--
-- The note, a hash: sequence number -> name, of each lease that was taken.
-- Each lease goes last, and first nothing is removed: see retry.lua. The note comes after it and may
-- fail: it must neither tell of a lease that stands, nor keep a job from going back.

local moved, buried, problem = 0, false, nil

local function note(lease, name)
  redis.pcall('HSET', KEYS[2], lease:match('[^/]*$'), name)
  redis.pcall('EXPIRE', KEYS[2], ARGV[4])
end

for i = 5, #ARGV, 5 do
  local queue, lease, verdict, payload = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local list, inflight = KEYS[1 + 2 * queue], KEYS[2 + 2 * queue]
  if redis.call('HEXISTS', inflight, lease) == 1 then
    redis.call('HDEL', inflight, '')
    local put
    if verdict == 'requeue' then
      put = redis.pcall('RPUSH', list, payload)
    else
      put = redis.pcall('ZADD', KEYS[1], ARGV[1], payload)
    end
    if type(put) == 'table' and put.err then
      problem = put
    else
      moved = moved + 1
      buried = buried or verdict == 'bury'
      redis.call('HDEL', inflight, lease)
      local mark = inflight:sub(1, -9) -- whoever waits for a slot or for the queue's rest
      redis.call('DEL', mark .. 'full', mark .. 'busy')
      if ARGV[4] ~= '0' then note(lease, ARGV[i + 4]) end
    end
  end
end
if buried then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2])
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -tonumber(ARGV[3]) - 1)
end
return problem or moved
