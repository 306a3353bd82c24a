-- Part of push.lua: unique jobs. Each has a key: its lock. The arguments: for how many milliseconds they
-- have it from their due time on, and a letter: 'e' if the locks outlast the jobs, 'f' if a job that is not pushed
-- is not to be pushed later either (doubt.lua), else 'p'.

--- @include "lock"
--- @include "doubt"

local before, size, class, held_for, letter
local taken -- by lock: the jid of the job of this call that has it; and in their order those jobs
local was_free

parts.l = {
  begin = function(i, keys, count, name)
    before, size, class, taken = keys, count, name, {}
    held_for, letter = ARGV[i], ARGV[i + 1]
    return i + 2, keys + count, true
  end,
  -- A lock that holds another type is left out.
  look = function(number, payload, at, jid)
    local lock = KEYS[before + number]
    local holder = taken[lock] or holder_of(lock)
    if type(holder) == 'table' then
      count_end(KEYS[4], 'damaged', '(feature)')
      was_free = nil
      return nil
    end
    was_free = holder == ''
    if was_free or holder == jid then return nil end
    local refusal = count_or_refuse(KEYS[4], 'duplicate', class)
    if refusal then return refusal end
    return holder, not taken[lock] and note_if_doubted(KEYS[#KEYS], lock, at or '', letter ~= 'f' and payload)
  end,
  take = function(number, _, at, jid)
    if was_free == nil then return end
    local lock = KEYS[before + number]
    taken[#taken + 1] = { lock, jid, was_free, at }
    if number < size then taken[lock] = jid end -- so that the jobs behind it see that
  end,
  write = function()
    for n = 1, #taken do
      local each = taken[n]
      local at, milliseconds = each[4], held_for
      if at then milliseconds = in_text(math.max(0, 1000 * at - now_in_ms()) + held_for) end
      take_lock(each[1], each[2], class, milliseconds, each[3], letter == 'e')
    end
  end,
}
