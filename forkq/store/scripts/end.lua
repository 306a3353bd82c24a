-- Ends a leased job that goes nowhere: it is neither in the retry set nor in the dead set afterwards. One that
-- was not run gives back what it cost the rate of its queue.
--
-- KEYS  [1] in-flight hash of its queue   [2] the mark of those that wait for its end
--       [3] the bucket of the queue's rate   [4] how jobs have ended   then those of its effects
-- ARGV  [1] lease   [2] how it ends; '' does not count   [3] its class   [4] 1 if it was not run
--       [5] its effects (effects.lua)
-- Returns 1, or 0 if the lease is gone: another process owns the job now. After damage a list of 1 and of
--         the keys of features that hold another type.
--
-- The first write is a removal, so a full server takes the rest. A repeated call finds no lease. If
-- another program replaced the hash by another type, all its leases are gone, and no other process has
-- the job.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "token_back"
--- @include "effects"

local removed = redis.pcall('HDEL', KEYS[1], ARGV[1])
if removed == 0 then return 0 end
if type(removed) == 'table' and not removed.err:find('WRONGTYPE', 1, true) then return removed end
write(look_at(ARGV[5]))
redis.pcall('DEL', KEYS[2]) -- wakes the children that wait for a permit (fetch.lua)
if ARGV[4] == '1' then give_token_back(KEYS[3]) end
if ARGV[2] ~= '' then count_end(KEYS[4], ARGV[2], ARGV[3]) end
return with_damaged_keys(1)
