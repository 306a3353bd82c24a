-- Pushes debounced jobs: each to the schedule, in the place of the one before it that waits there.
--
-- KEYS  [1] the schedule   [2] how jobs have ended   [3] the results that the leader is to write   then the lock of each
--       job   then per job: its result, and what is known of its jid (once.lua), each if it has that
-- ARGV  per job: its payload, its jid, its class, how many seconds after this push it is due, and how many
--       after the first of the pushes at the latest; how many seconds after its due time it expires (0: its
--       payload has no placeholder); the number of the key before what is known of its jid ('': nothing), the same
--       of its result, the placeholder of that, and for how many milliseconds from its due time on it may wait until
--       that is gone
-- Returns 1, then 1 for each job, or 2 if it was pushed before; in the place of the latter the error of the refusal.
--
-- In a full server the first write, to the schedule, is refused, and the job before stays.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "ended"
--- @include "now"
--- @include "lock"
--- @include "debounce"
--- @include "once"
--- @include "placeholder"

local function push(i, lock)
  local payload, jid, class, after, most, expires_in, known = unpack(ARGV, i, i + 6)
  local result, placeholder, waits_for = unpack(ARGV, i + 7, i + 9)
  local push_key = known ~= '' and KEYS[known + 1]
  local reply = push_key and known_push(push_key, {}, KEYS[2], class)
  if reply then return reply end
  local job = { payload = payload, jid = jid, class = class, after = after, most = most, expires_in = expires_in }
  reply = push_debounced(KEYS[1], KEYS[2], KEYS[3], lock, job)
  if push_key and reply == 1 then note_push(push_key) end
  if result ~= '' and reply == 1 then await_result(KEYS[result + 1], placeholder, waits_for, KEYS[2]) end
  return reply
end

local replies = { 1 }
for i = 1, #ARGV, 10 do replies[#replies + 1] = push(i, KEYS[4 + (i - 1) / 10]) end
return replies
