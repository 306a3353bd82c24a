-- Part of push.lua, push_newest.lua and push_debounced.lua: jobs whose push may be sent again. The key of a jid is there for a day
-- once the job was pushed. It has the jid of another job if that had the lock, and this one was noted, to be
-- pushed later (doubt.lua).

local KNOWN_FOR = 86400000
local PUSHED = 2 -- the reply for a job that was pushed before

-- The reply for a job whose jid is known, also as one of the `new` ones of this call, or an error reply; nothing if it is
-- to be pushed. A key that holds another type is left out.
local function known_push(key, new, totals, class)
  local found = new[key] and '' or redis.pcall('GET', key)
  if type(found) == 'table' and found.err then
    count_end(totals, 'damaged', '(feature)')
    return nil
  end
  if not found then return nil end
  return count_or_refuse(totals, 'repeated', class) or found == '' and PUSHED or found
end

local function note_push(key, holder)
  redis.pcall('SET', key, holder or '', 'PX', KNOWN_FOR)
end
