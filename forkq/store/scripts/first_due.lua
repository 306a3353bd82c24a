-- Tells when the first job of a sorted set is due. ZRANGE alone would send its payload, too, which may
-- have 16 MB.
--
-- KEYS  [1] the schedule or retry set
-- Returns epoch seconds; '' if the set is empty.

local first = redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first.err then return first end
return first[2] or ''
