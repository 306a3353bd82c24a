-- Removes what is left of a queue whose jobs have all moved to another shard: its name, its pause, and
-- the rules that were changed at run time.
--
-- KEYS  [1] the hash of the moves   [2] the set of queue names   [3] the set of paused queues
--       [4] the hash of who paused them   [5] the hash of the queues with rules changed at run time
--       [6] the queue's list   [7] its list of suspects   [8] its in-flight hash   [9] its page under way
--       [10] its rules changed at run time   [11] its tokens   [12] the solo children that a rule
--       keeps waiting
-- ARGV  [1] the queue
-- Returns 1, or 0 if it has jobs again.
--
-- The number of the last page counts up, so that a call of move_take.lua that comes late takes nothing.

for key = 6, 9 do
  if redis.call('EXISTS', KEYS[key]) == 1 then return 0 end
end
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[3], ARGV[1])
for key = 4, 5 do redis.call('HDEL', KEYS[key], ARGV[1]) end
for key = 10, 12 do redis.call('DEL', KEYS[key]) end
local id, number = (redis.call('HGET', KEYS[1], ARGV[1]) or ''):match('^(%S+) (%d+) $')
if id then redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %d ', id, number + 1)) end
return 1
