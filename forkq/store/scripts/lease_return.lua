-- Returns jobs that were leased ahead and have not started to the head of their queues, unchanged.
--
-- KEYS  [1] the set of queue names   then per queue: its list, its in-flight hash,
--       the mark of those that wait for the end of its jobs
-- ARGV  [1] the owner: a lease is owner .. sequence number
--       [2 ..] queue number, sequence number, ... : the youngest first, so that the oldest runs next
-- Returns how many were moved. A job whose lease is gone was moved by another process.
--
-- Each lease is removed after its job was added, and the HDEL of nothing comes first: see retry.lua.

local moved = 0
for i = 2, #ARGV, 2 do
  local queue, lease = tonumber(ARGV[i]), ARGV[1] .. ARGV[i + 1]
  local list, inflight, mark = KEYS[3 * queue - 1], KEYS[3 * queue], KEYS[3 * queue + 1]
  local payload = redis.call('HGET', inflight, lease)
  if payload then
    redis.call('HDEL', inflight, '')
    redis.call('RPUSH', list, payload)
    redis.call('HDEL', inflight, lease)
    redis.pcall('SADD', KEYS[1], inflight:match('{queue:(.*)}:inflight$'))
    redis.call('DEL', mark) -- wakes the children that wait for a permit (fetch.lua)
    moved = moved + 1
  end
end
return moved
