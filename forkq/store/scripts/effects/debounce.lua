-- Part of effects.lua: the effect on the lock of a debounced job.

--- @include "now"
--- @include "lock"
--- @include "debounce"

-- Takes the lock again if it is free, and if the job waits in the schedule once more, which is the key behind
-- the lock: the effect has jid and class.
effect_kinds.debounce_again = {
  look = function(lock) return holder_of(lock) end,
  write = function(lock, effect, holder)
    if holder ~= '' and holder ~= effect[3] then return false end
    local member = set_entry and set_entry[2]
    local due = score_of(KEYS[effect[2] + 1], member)
    if due then
      local job = { jid = effect[3], class = effect[4] }
      hold_debounced(lock, job, member, now_in_ms(), 1000 * due, 1000 * due)
    end
    return true
  end,
}
