-- Moves a leased job to its queue's list of suspects, unrun and unchanged: a suspect to the head, or to
-- the tail if it must let others before; a job of a held class to the tail, so that these keep their
-- order and let the suspects before.
--
-- KEYS  [1] the in-flight hash of its queue   [2] the queue's list of suspects
--       [3] the set of the queues that have suspects   [4] the list of the queue
--       [5] the hash of the held classes   [6] the mark of those that wait for the job's end
--       [7] the bucket of the queue's rate
-- ARGV  [1] the lease   [2] the name of the queue   [3] the class; '' or none for a suspect
--       [4] 1 to let others before
-- Returns 1; 2 if the class is not held any more: the job is at the head of its queue again; 0 if the
--         lease is gone: another process owns the job now.
--
-- The order of the writes has the same reasons as in retry.lua.

--- @include "token_back"

local payload = redis.call('HGET', KEYS[1], ARGV[1])
if not payload then return 0 end
local is_suspect = (ARGV[3] or '') == ''
local is_held = not is_suspect and redis.pcall('HEXISTS', KEYS[5], ARGV[3]) == 1

redis.call('HDEL', KEYS[1], '')
if is_suspect then
  redis.call(ARGV[4] == '1' and 'LPUSH' or 'RPUSH', KEYS[2], payload)
elseif is_held then
  redis.call('LPUSH', KEYS[2], payload)
else
  redis.call('RPUSH', KEYS[4], payload)
end
redis.call('HDEL', KEYS[1], ARGV[1])
if is_suspect or is_held then redis.pcall('SADD', KEYS[3], ARGV[2]) end
redis.call('DEL', KEYS[6]) -- wakes the children that wait for a permit (fetch.lua)
give_token_back(KEYS[7])
return (is_suspect or is_held) and 1 or 2
