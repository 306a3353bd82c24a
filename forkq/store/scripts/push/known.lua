-- Part of push.lua: jobs whose push may be sent again (once.lua). Each has a key: what is known of its jid.

--- @include "once"

local before, class, new

local function note_holder_of(number, holder) note_push(KEYS[before + number], holder) end

parts.k = {
  begin = function(i, keys, count, name)
    before, class, new, note_holder = keys, name, {}, note_holder_of
    return i, keys + count, true
  end,
  look = function(number) return known_push(KEYS[before + number], new, KEYS[4], class) end,
  take = function(number)
    local key = KEYS[before + number]
    new[key], new[#new + 1] = true, key
  end,
  write = function()
    for _, key in ipairs(new) do note_push(key) end
  end,
}
