-- Puts an owner's jobs back to the head of their queues, unchanged, the oldest first in line, and not
-- too much at a time.
--
-- KEYS  [1] the set of queue names   then per queue: its list, its in-flight hash
-- ARGV  [1] the owner: a lease is owner .. sequence
--       [2] leases from this sequence number on are left alone: should this script arrive late, they
--           are younger than it; 0 leaves none
--       [3] how much to move, bytes: at least one job, whatever its size
--       [4 ..] sequence numbers to leave alone
-- Returns how many were put back, and 1 if there is more to do. If a queue is damaged, an
--          error, once the jobs of all others have been moved.
--
-- Each lease goes last, and first nothing is removed: see retry.lua. A queue that was deleted while
-- its job was in flight is a queue again.

local owner, bound, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local keep, moved, problem = {}, 0, nil
for i = 4, #ARGV do keep[ARGV[i]] = true end

local function leases_of(hash)
  local mine, all = {}, redis.pcall('HKEYS', hash)
  if all.err then problem = all end
  for _, lease in ipairs(all.err and {} or all) do
    local sequence = lease:sub(#owner + 1)
    local old = bound == 0 or (tonumber(sequence) or 0) < bound
    if lease:sub(1, #owner) == owner and old and not keep[sequence] then
      mine[#mine + 1] = { lease = lease, sequence = tonumber(sequence) or 0 }
    end
  end
  table.sort(mine, function(a, b) return a.sequence > b.sequence end)
  return mine
end

for k = 2, #KEYS, 2 do
  local list, inflight = KEYS[k], KEYS[k + 1]
  local mine = leases_of(inflight)
  if #mine > 0 then
    redis.call('HDEL', inflight, '')
    redis.pcall('SADD', KEYS[1], inflight:match('{queue:(.*)}:inflight$'))
    local mark = inflight:sub(1, -9) -- whoever waits for a slot or for the queue's rest: fetch.lua
    redis.call('DEL', mark .. 'full', mark .. 'busy')
  end
  for _, job in ipairs(mine) do
    if left <= 0 then return { moved, 1 } end
    local payload = redis.call('HGET', inflight, job.lease)
    local reply = redis.pcall('RPUSH', list, payload)
    if type(reply) == 'table' and reply.err then
      problem = reply
      break
    end
    redis.call('HDEL', inflight, job.lease)
    left, moved = left - #payload, moved + 1
  end
end
return problem or { moved, 0 }
