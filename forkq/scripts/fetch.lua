-- Acknowledges what is done and takes what is wanted, in one round trip.
--
-- KEYS  per queue, in the capsule's order: its list, its in-flight hash
-- ARGV  [1] how many payloads to take at most
--       [2] the owner: a lease is owner .. sequence
--       [3] the sequence number of the first payload taken; the rest count up from it
--       [4] seed of the draw between weighted queues; 0 takes strictly in order
--       [5 ..] one weight per queue
--       then, for each queue with jobs to acknowledge: its number, how many, their sequence numbers
-- Returns a flat list: queue number, payload, queue number, payload, ... in sequence order, and one
-- element more if any of the leases to acknowledge was gone.
--
-- The first write is always a removal, so that it works on a server that is full.
-- Reading comes before taking: only reading registers a waiting child's interest in a list, and a
-- key of the wrong type stops the script while every payload is still in its list.

local queues, want, owner, sequence = #KEYS / 2, tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local gone = false

local function acknowledge(from)
  while from <= #ARGV do
    local queue, count, leases = tonumber(ARGV[from]), tonumber(ARGV[from + 1]), {}
    for i = 1, count do leases[i] = owner .. ARGV[from + 1 + i] end
    if redis.call('HDEL', KEYS[2 * queue], unpack(leases)) < count then gone = true end
    from = from + 2 + count
  end
end

local taken = {}

local function take(queue, count)
  if count == 0 or redis.call('LLEN', KEYS[2 * queue - 1]) == 0 then return 0 end
  redis.call('HLEN', KEYS[2 * queue])
  local payloads = redis.call('RPOP', KEYS[2 * queue - 1], count)
  local leased = {}
  for i, payload in ipairs(payloads) do
    leased[2 * i - 1] = owner .. string.format('%d', sequence)
    leased[2 * i] = payload
    sequence = sequence + 1
    taken[#taken + 1] = queue
    taken[#taken + 1] = payload
  end
  redis.call('HSET', KEYS[2 * queue], unpack(leased))
  return #payloads
end

local function take_in_order()
  for queue = 1, queues do want = want - take(queue, want) end
end

-- One draw per payload, never per batch; a queue found empty leaves the draw.
local function take_by_weight(seed)
  math.randomseed(seed)
  local weights, total = {}, 0
  for queue = 1, queues do
    weights[queue] = tonumber(ARGV[4 + queue])
    total = total + weights[queue]
  end
  while want > 0 and total > 0 do
    local drawn = {}
    for queue = 1, queues do drawn[queue] = 0 end
    for _ = 1, want do
      local point, queue = math.random() * total, 1
      while point >= weights[queue] and queue < queues do
        point = point - weights[queue]
        queue = queue + 1
      end
      drawn[queue] = drawn[queue] + 1
    end
    for queue = 1, queues do
      local got = take(queue, drawn[queue])
      want = want - got
      if got < drawn[queue] then
        total = total - weights[queue]
        weights[queue] = 0
      end
    end
  end
  -- A queue that was never drawn was not read either: the waiting child must be told of it too.
  if want > 0 then for queue = 1, queues do redis.call('LLEN', KEYS[2 * queue - 1]) end end
end

acknowledge(5 + queues)
if ARGV[4] == '0' then take_in_order() else take_by_weight(tonumber(ARGV[4])) end
if gone then taken[#taken + 1] = 0 end
return taken
