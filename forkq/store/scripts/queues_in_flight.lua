-- Notes that jobs of these queues may be in flight, also on a server that is full: what begins with a
-- removal is taken even there.
--
-- KEYS  [1] the sorted set of such queues by the time of the last note, epoch seconds
-- ARGV  their names

local now = redis.call('TIME')[1]
redis.call('ZREM', KEYS[1], '')
for _, name in ipairs(ARGV) do redis.call('ZADD', KEYS[1], now, name) end
