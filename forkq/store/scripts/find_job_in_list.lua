-- Looks for one job in a part of a list, from the left on. Changes nothing.
--
-- KEYS  [1] the list
-- ARGV  [1] the jid as it is in JSON, with its quotes
--       [2] index to begin at  [3] how much to read: bytes, each payload counting 256 more
-- Returns the index to go on at, -1 at the end of the list; then the payloads that may be the job.

local jid, from, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local LARGE = 131072
local found = { -1 }

local function is_it(payload)
  local at = payload:find(jid, 1, true)
  while at do
    if payload:sub(math.max(1, at - 16), at - 1):find('"jid"%s*:%s*$') then return true end
    at = payload:find(jid, at + 1, true)
  end
end

local step = 4 -- doubles as long as the payloads are small
repeat
  local payloads = redis.pcall('LRANGE', KEYS[1], from, from + step - 1)
  if payloads.err then -- another type is no queue of forkq; any other error is raised
    if payloads.err:find('WRONGTYPE', 1, true) then return found end
    error(payloads.err)
  end
  local before = left
  for _, payload in ipairs(payloads) do
    left = left - #payload - 256
    if is_it(payload) then found[#found + 1] = payload end
  end
  if #payloads < step then return found end
  from = from + step
  step = before - left > LARGE and math.max(1, math.floor(step / 2)) or math.min(256, step * 2)
until left < 0
found[1] = from
return found
