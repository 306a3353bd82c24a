-- Adds to a set, also on a server that is full: what begins with a removal is taken even there.
--
-- KEYS  [1] the set     ARGV  its new members
-- Returns how many of them were not in it.

redis.call('SREM', KEYS[1], '')
return redis.call('SADD', KEYS[1], unpack(ARGV))
