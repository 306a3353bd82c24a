-- Part of the scripts that add to hashes of totals, which never expire.

-- Under which name a hash counts `name`. One that has all the names that it may have counts later ones
-- together. `added` runs a command that adds, and copes with its refusal.
local function name_in_totals(totals, name, most, added)
  if redis.call('HEXISTS', totals, name .. '|n') == 1 then return name end
  if (tonumber(redis.call('HGET', totals, '|names') or 0) or most) >= most then return '(other)' end
  added('HINCRBY', totals, '|names', 1)
  added('HINCRBY', totals, name .. '|n', 0)
  return name
end
