-- Returns an owner's jobs to the head of their queues, unchanged, so that the oldest runs next. Moves
-- a part at a time.
--
-- KEYS  [1] the set of queue names   then per queue: its list, its in-flight hash,
--       the mark of those that wait for the end of its jobs
-- ARGV  [1] the owner: a lease is owner .. sequence number
--       [2] leases with this sequence number or a higher one stay: they may be younger than this
--           call, if it arrives late; 0 keeps none
--       [3] how much to move, bytes: at least one job, even a large one
--       [4 ..] sequence numbers of leases that stay
-- Returns how many were moved, and 1 if there is more to do. If a queue is damaged, the script moves
--          the jobs of all other queues and then returns the error.
--
-- Each lease is removed after its job was added, and the HDEL of nothing comes first: see retry.lua.
-- A queue that was deleted while its job was in flight is added to the queue names again.

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

for k = 2, #KEYS, 3 do
  local list, inflight = KEYS[k], KEYS[k + 1]
  local mine = leases_of(inflight)
  if #mine > 0 then
    redis.call('HDEL', inflight, '')
    redis.pcall('SADD', KEYS[1], inflight:match('{queue:(.*)}:inflight$'))
    redis.call('DEL', KEYS[k + 2]) -- wakes the children that wait for a permit (fetch.lua)
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
