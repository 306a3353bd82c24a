-- Notes when a queue with marked jobs is looked at next: before the look, and once all its jobs were
-- looked at.
--
-- KEYS  [1] the queues with marked jobs   [2] its suspects   [3] its list   [4] its in-flight hash
-- ARGV  [1] the queue   [2] the score that it had before the look   [3] the score from now on
-- Returns 1 if the queue is forgotten: it has no job at all; else 0.
--
-- A job that came meanwhile may have lowered the score; then that one stays. The ZREM of nothing is for a
-- full server: see retry.lua.

if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0 then return redis.call('ZREM', KEYS[1], ARGV[1]) end
redis.call('ZREM', KEYS[1], '')
local score = redis.call('ZMSCORE', KEYS[1], ARGV[1])[1]
if score and tonumber(score) == tonumber(ARGV[2]) then redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1]) end
return 0
