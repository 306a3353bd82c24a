-- Part of each script that ends jobs otherwise than done or failed: counts how they ended.

local MOST_NAMES = 2000 -- payloads may name any class

-- `outcome` and `class` are one field of the hash. A damaged hash keeps no job from its end. Returns the reply.
local function count_end(totals, outcome, class)
  local size = redis.pcall('HLEN', totals)
  if type(size) == 'number' and size >= MOST_NAMES then
    local found = redis.pcall('HEXISTS', totals, class .. '|' .. outcome)
    if found == 0 then class = '(other)' end
  end
  return redis.pcall('HINCRBY', totals, class .. '|' .. outcome, 1)
end
