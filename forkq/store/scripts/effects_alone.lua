-- Does what the features of jobs ask that neither end nor go elsewhere: they start, or they run.
--
-- KEYS  those of the effects   ARGV  for each job its effects (effects.lua)
-- Returns 1; after damage: see end.lua.
--
-- The first write is a removal, so that a full server takes the rest: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "effects"

for i = 1, #ARGV do
  local found = look_at(ARGV[i])
  redis.pcall('HDEL', KEYS[found.totals], '')
  write(found)
end
return with_damaged_keys(1)
