-- Ends that a class is held. The leader's clock then returns its jobs to their queues.
--
-- KEYS  [1] the hash of the held classes   [2] the set of the released ones   [3] the deaths of the class
-- ARGV  [1] the class
-- Returns 1, or 0 if it was not held.

if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[3])
redis.call('SADD', KEYS[2], ARGV[1])
return 1
