-- Moves one job from its lease to a set: both changes are made, or none. One that has failed goes to the
-- retry set, one that was not run, or that snoozes, to the schedule.
--
-- KEYS  [1] in-flight hash of its queue   [2] the set   [3] the mark of those that wait for its end
--       [4] the bucket of the queue's rate   [5] how jobs have ended, if this counts there or has
--       effects   then those of its effects
-- ARGV  [1] lease   [2] when to run again, epoch seconds   [3] the new payload
--       [4] 1 if it was not run: it gives back what it cost the rate of its queue
--       [5] as what it counts, '' if it does not   [6] its class then   [7] its effects (effects.lua)
-- Returns 1, or 0 if the lease is gone: another process owns the job now. After damage: see end.lua.
--
-- Redis does not undo a script that fails, so the lease is removed last. A full server refuses
-- every addition before the first removal of a script, so the script first removes nothing. That also
-- fails, before the job is added, if the user has lost the right to remove.
-- If another program replaced the hash by another type, all its leases are gone, and no other
-- process has the job: the job is added to the set all the same.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "token_back"
--- @include "effects"

local leased = redis.pcall('HEXISTS', KEYS[1], ARGV[1])
if leased == 0 then return 0 end
local damaged = type(leased) == 'table' and leased.err and leased.err:find('WRONGTYPE', 1, true)
if leased ~= 1 and not damaged then return leased end
local effects = look_at(ARGV[7])
if not damaged then redis.call('HDEL', KEYS[1], '') end -- raises where the user may not remove
if not effects.is_replaced then redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3]) end
set_entry = { state_in(KEYS[2]), ARGV[3] }
write(effects)
if not damaged then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('DEL', KEYS[3]) -- wakes the children that wait for a permit (fetch.lua)
if ARGV[4] == '1' then give_token_back(KEYS[4]) end
local outcome = effects.is_replaced and 'replaced' or ARGV[5]
if outcome and outcome ~= '' then count_end(KEYS[5], outcome, ARGV[6]) end
return with_damaged_keys(1)
