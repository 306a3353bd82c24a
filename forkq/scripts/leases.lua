-- Lists what an owner has in flight, oldest first within each queue. Changes nothing.
--
-- KEYS  per queue: its in-flight hash
-- ARGV  [1] the owner: a lease is owner .. sequence
-- Returns a flat list: queue number, lease, payload, ...

local owner, found = ARGV[1], {}
for k = 1, #KEYS do
  local mine = {}
  local leases = redis.pcall('HKEYS', KEYS[k])
  if leases.err and not leases.err:find('WRONGTYPE', 1, true) then return leases end
  for _, lease in ipairs(leases) do -- none if the key is damaged
    if lease:sub(1, #owner) == owner then
      mine[#mine + 1] = { lease = lease, sequence = tonumber(lease:sub(#owner + 1)) or 0 }
    end
  end
  table.sort(mine, function(a, b) return a.sequence < b.sequence end)
  for _, job in ipairs(mine) do
    found[#found + 1] = k
    found[#found + 1] = job.lease
    found[#found + 1] = redis.call('HGET', KEYS[k], job.lease)
  end
end
return found
