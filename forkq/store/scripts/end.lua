-- Ends leased jobs of a queue that go nowhere: they are neither in the retry set nor in the dead set afterwards. One
-- that was not run gives back what it cost the rate of its queue.
--
-- KEYS  [1] in-flight hash of the queue   [2] the mark of those that wait for an end in it
--       [3] the bucket of the queue's rate   [4] how jobs have ended   then those of the effects of each job
-- ARGV  for each job: its lease; how it ends, '' does not count; its class; 1 if it was not run; its effects
--       (effects.lua), in which the keys are numbered as if it were the only job; how many keys these have. The last
--       job may leave out what it does not need
-- Returns of one job 1, or 0 if the lease is gone: another process owns the job now. After damage a list of 1 and
--         of the keys of features that hold another type. Of several jobs a list of these, or of errors.
--
-- The jobs are dealt with one after the other, and the first write is a removal, so a full server takes the rest.
-- A repeated call finds no lease. If another program replaced the hash by another type, all its leases are gone,
-- and no other process has the jobs.

local unpack = table.unpack or unpack -- Lua 5.4 has the former
local FIXED = 4

--- @include "token_back"
--- @include "effects"

local function end_job(first, before)
  local lease, outcome, class, unrun, asked = unpack(ARGV, first, first + 4)
  local removed = redis.pcall('HDEL', KEYS[1], lease)
  if removed == 0 then return 0 end
  if type(removed) == 'table' and not removed.err:find('WRONGTYPE', 1, true) then return removed end
  write(look_at(asked, FIXED, before))
  if unrun == '1' then give_token_back(KEYS[3]) end
  if outcome ~= '' then count_end(KEYS[4], outcome, class) end
  return with_damaged_keys(1)
end

-- A job that cannot be ended keeps no other one from its end.
local function reply_for(first, before)
  local is_done, reply = pcall(end_job, first, before)
  return (is_done or type(reply) == 'table') and reply or { err = reply }
end

local replies, before = {}, 0
for first = 1, #ARGV, 6 do
  replies[#replies + 1] = reply_for(first, before)
  before = before + (ARGV[first + 5] or 0)
end
redis.pcall('DEL', KEYS[2]) -- wakes the children that wait for a permit (fetch.lua)
return #replies == 1 and replies[1] or replies
