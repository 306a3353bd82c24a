-- Marks a deploy, unless the same one was marked less than a minute ago.
--
-- KEYS  [1] the marks of the day, by minute   [2] a lock for that label
-- ARGV  [1] the minute   [2] the label   [3] [4] seconds until the marks and the lock expire
-- Returns what the minute says now: the labels of several deploys are joined. Nothing if that label
-- has just been marked.
--
-- First nothing is removed, for a full server: see retry.lua. The lock comes last: a mark that was
-- refused may be set again.

if redis.call('EXISTS', KEYS[2]) == 1 then return false end
redis.call('HDEL', KEYS[1], '')
local before = redis.call('HGET', KEYS[1], ARGV[1])
local label = before and before .. ', ' .. ARGV[2] or ARGV[2]
redis.call('HSET', KEYS[1], ARGV[1], label)
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[4])
return label
