-- Returns the suspects of a queue to the head of its own list, unchanged, a part at a time: no process
-- of forkq serves the queue any more.
--
-- KEYS  [1] the list of suspects   [2] the list of the queue   [3] the set of the queues that have
--       suspects   [4] the set of queue names
-- ARGV  [1] the name of the queue   [2] how many jobs to move at most
-- Returns [1] how many it moved   [2] how many are left
--
-- It begins with the youngest, so that the oldest ends at the head. Each job is removed after it was
-- added. The SREM of nothing comes first: a full server takes a write after a removal.

local BYTES = 1048576 -- of payloads, after which it stops
local moved, bytes = 0, 0

redis.call('SREM', KEYS[3], '')
while moved < tonumber(ARGV[2]) and bytes < BYTES do
  local payload = redis.call('LINDEX', KEYS[1], 0)
  if not payload then break end
  redis.call('RPUSH', KEYS[2], payload)
  redis.call('LPOP', KEYS[1])
  moved, bytes = moved + 1, bytes + #payload
end

local left = redis.call('LLEN', KEYS[1])
if moved > 0 then redis.call('SADD', KEYS[4], ARGV[1]) end
if left == 0 then redis.call('SREM', KEYS[3], ARGV[1]) end
return { moved, left }
