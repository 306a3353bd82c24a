-- Marks a deploy, unless a deploy with the same label was marked a moment ago.
--
-- KEYS  [1] the marks of the day, by minute   [2] a lock for that label
-- ARGV  [1] the minute   [2] the label   [3] [4] seconds until the marks and the lock expire
-- Returns the text of the minute now: the labels of several deploys are joined. Nothing if the lock
-- of that label exists.
--
-- The HDEL of nothing is for a full server: see retry.lua. The lock is set last, so that a mark that
-- Redis refused may be set again.

if redis.call('EXISTS', KEYS[2]) == 1 then return false end
redis.call('HDEL', KEYS[1], '')
local before = redis.call('HGET', KEYS[1], ARGV[1])
local label = before and before .. ', ' .. ARGV[2] or ARGV[2]
redis.call('HSET', KEYS[1], ARGV[1], label)
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[4])
return label
