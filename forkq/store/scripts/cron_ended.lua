-- Records that a job of a periodic entry has ended, so that the next one may be enqueued.
--
-- KEYS  [1] jids of the latest jobs   [2] the entry's runs
-- ARGV  [1] name   [2] jid   [3] a line for the runs   [4] how many lines to keep
--       [5] seconds until the runs expire
-- Returns 1 if it was the entry's latest job. The HDEL of nothing is for a full server: see retry.lua.

redis.call('HDEL', KEYS[1], '')
local latest = redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2]
if latest then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.pcall('LPUSH', KEYS[2], ARGV[3])
redis.pcall('LTRIM', KEYS[2], 0, tonumber(ARGV[4]) - 1)
redis.pcall('EXPIRE', KEYS[2], ARGV[5])
return latest and 1 or 0
