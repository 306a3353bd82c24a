-- Removes the names of queues that have no suspects from the set of those that have some.
--
-- KEYS  [1] the set   [2 ..] lists of suspects
-- ARGV  the name of the queue of each list
-- Returns how many names were removed.

local removed = 0
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then removed = removed + redis.call('SREM', KEYS[1], ARGV[i - 1]) end
end
return removed
