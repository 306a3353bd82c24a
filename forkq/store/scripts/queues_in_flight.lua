-- Records that jobs of these queues may be in flight, also on a full server: see retry.lua.
--
-- KEYS  [1] the sorted set of such queues by the time of the last record, epoch seconds
-- ARGV  their names

local now = redis.call('TIME')[1]
redis.call('ZREM', KEYS[1], '')
for _, name in ipairs(ARGV) do redis.call('ZADD', KEYS[1], now, name) end
