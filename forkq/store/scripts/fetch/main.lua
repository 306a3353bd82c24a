-- Part of fetch.lua and fetch_suspects.lua: all but the reply.

--- @include "fetch/arguments"
--- @include "fetch/acknowledge"
--- @include "fetch/move"

-- The fast path: in order, and no rule in force. The functions of the slow path are created in its
-- own branch: that takes as long as the whole fast path (docs/decisions/010).
local changed = want > 0 and call('EXISTS', KEYS[1], KEYS[2]) > 0
if want == 0 or (position == #ARGV and not changed) then
  for queue = 1, queues do
    if want == 0 then break end
    want = want - move(queue, want)
  end
else
  --- @include "fetch/slow_path"
  if rule_count == 0 and not changed then
    --- @include "fetch/room_without_rules"
    --- @include "fetch/take"
    --- @include "fetch/groups"
  else
    if want > free then want, answer[2] = free, 2 end
    --- @include "fetch/rules"
    if changed then
      --- @include "fetch/changed_rules"
    end
    --- @include "fetch/rates"
    --- @include "fetch/room"
    --- @include "fetch/take"
    --- @include "fetch/groups"
    if want > 0 and bytes_left > 0 then
      --- @include "fetch/reasons"
    end
  end
end
--- @include "fetch/finish"
