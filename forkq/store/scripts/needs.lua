-- Part of each script that reads what the features of a job need.

-- The text behind the last `"needs":{` of the payload: its own needs stand behind its arguments, where the
-- same text may stand. Nothing if there is none.
local function needs_in(payload)
  local tail = payload:sub(-8192)
  return tail:find('"needs":{', 1, true) and tail:match('.*"needs":{(.*)')
end

local function expiry_in(needs) return needs:match('"expires_at":(%d+%.?%d*)') end
