-- Puts an owner's jobs back to the head of their queues, unchanged, the oldest first in line.
--
-- KEYS  per queue: its list, its in-flight hash
-- ARGV  [1] the owner: a lease is owner .. sequence
--       [2] leases from this sequence number on are left alone: should this script arrive late, they
--           are younger than it; 0 leaves none
--       [3 ..] sequence numbers to leave alone
-- Returns how many were put back. If a queue refuses its jobs, an error, once all others have theirs.
--
-- Each lease goes last, and first nothing is removed: see retry.lua.

local owner, bound, keep, moved, problem = ARGV[1], tonumber(ARGV[2]), {}, 0, nil
for i = 3, #ARGV do keep[ARGV[i]] = true end

for k = 1, #KEYS, 2 do
  local mine = {}
  local leases = redis.pcall('HKEYS', KEYS[k + 1])
  if leases.err then problem, leases = leases, {} end
  for _, lease in ipairs(leases) do
    local sequence = lease:sub(#owner + 1)
    local old = bound == 0 or (tonumber(sequence) or 0) < bound
    if lease:sub(1, #owner) == owner and old and not keep[sequence] then
      mine[#mine + 1] = { lease = lease, sequence = tonumber(sequence) or 0 }
    end
  end
  table.sort(mine, function(a, b) return a.sequence > b.sequence end)
  for _, job in ipairs(mine) do
    local payload = redis.call('HGET', KEYS[k + 1], job.lease)
    redis.call('HDEL', KEYS[k + 1], '')
    local pushed = redis.pcall('RPUSH', KEYS[k], payload)
    if type(pushed) == 'table' then
      problem = pushed
      break
    end
    redis.call('HDEL', KEYS[k + 1], job.lease)
    moved = moved + 1
  end
  if #mine > 0 then
    local mark = KEYS[k + 1]:sub(1, -9) -- whoever waits for a slot or for the queue's rest: fetch.lua
    redis.call('DEL', mark .. 'full', mark .. 'busy')
  end
end
return problem or moved
