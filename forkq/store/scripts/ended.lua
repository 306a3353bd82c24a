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

-- Counts what is not pushed. What a server knows that has lost its role, or its replicas, is as old as that: returns
-- its refusal, which counts. Else nothing.
local function count_or_refuse(totals, outcome, class)
  local reply = count_end(totals, outcome, class)
  local refusal = type(reply) == 'table' and reply.err
  local is_old = refusal and (refusal:find('READONLY', 1, true) or refusal:find('NOREPLICAS', 1, true))
  return is_old and { err = refusal } or nil
end
