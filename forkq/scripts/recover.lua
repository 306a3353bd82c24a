-- Gives the jobs of a dead owner back, each with its crash record, or buries it.
--
-- KEYS  [1] the dead set   then per queue: its list, its in-flight hash
-- ARGV  [1] now, epoch seconds   [2] older than this is dropped from the dead set   [3] how many to keep
--       then per job: queue number, lease, 'requeue' or 'bury', the new payload
--       The caller lists each queue's newest lease first, so that the oldest ends at the head.
-- Returns how many jobs were moved; one whose lease is gone has been moved by somebody else.
--
-- Each lease goes last, and first nothing is removed: see retry.lua.

local moved, buried = 0, false
for i = 4, #ARGV, 4 do
  local queue, lease, verdict, payload = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if redis.call('HEXISTS', KEYS[1 + 2 * queue], lease) == 1 then
    moved = moved + 1
    redis.call('HDEL', KEYS[1 + 2 * queue], '')
    if verdict == 'requeue' then
      redis.call('RPUSH', KEYS[2 * queue], payload)
    else
      redis.call('ZADD', KEYS[1], ARGV[1], payload)
      buried = true
    end
    redis.call('HDEL', KEYS[1 + 2 * queue], lease)
    local mark = KEYS[1 + 2 * queue]:sub(1, -9) -- whoever waits for a slot or for the queue's rest
    redis.call('DEL', mark .. 'full', mark .. 'busy')
  end
end
if buried then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2])
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -tonumber(ARGV[3]) - 1)
end
return moved
