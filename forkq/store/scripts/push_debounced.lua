-- Pushes debounced jobs: each to the schedule, in the place of the one before it that waits there.
--
-- KEYS  [1] the schedule   [2] how jobs have ended   then the lock of each job
-- ARGV  per job: its payload, its jid, its class, how many seconds after this push it is due, and how many
--       after the first of the pushes at the latest; how many seconds after its due time it expires (0: its
--       payload has no placeholder)
-- Returns 1, then 1 for each job; in the place of the latter the error of the refusal.
--
-- In a full server the first write, to the schedule, is refused, and the job before stays.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "ended"
--- @include "lock"
--- @include "debounce"

local replies = { 1 }
for i = 1, #ARGV, 6 do
  local payload, jid, class, after, most, expires_in = unpack(ARGV, i, i + 5)
  local job = { payload = payload, jid = jid, class = class, after = after, most = most, expires_in = expires_in }
  replies[#replies + 1] = push_debounced(KEYS[1], KEYS[2], KEYS[3 + (i - 1) / 6], job)
end
return replies
