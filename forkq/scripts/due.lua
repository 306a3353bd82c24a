-- Moves due jobs from a sorted set to their queues; each only if this very member was still there.
--
-- KEYS  [1] the schedule or retry set   [2] the set of queue names   [3] the dead set   [4 ..] lists
-- ARGV  [1] now, epoch seconds
--       then per job: number of its list among KEYS (3 buries it), queue name, member, new payload
-- Returns how many were moved.

local moved = 0
for i = 2, #ARGV, 4 do
  local list, queue, member, payload = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if redis.call('ZREM', KEYS[1], member) == 1 then
    moved = moved + 1
    if list == 3 then
      redis.call('ZADD', KEYS[3], ARGV[1], payload)
    else
      redis.call('SADD', KEYS[2], queue)
      local pushed = redis.pcall('LPUSH', KEYS[list], payload)
      if type(pushed) == 'table' and pushed.err then
        redis.call('ZADD', KEYS[3], ARGV[1], payload) -- something else is in the list's place
      end
    end
  end
end
return moved
