-- Lists what an owner has in flight, newest first within each queue, and not too much of it at a
-- time. Changes nothing.
--
-- KEYS  per queue: its in-flight hash
-- ARGV  [1] the owner: a lease is owner .. sequence
--       [2] the queue to begin with   [3] only sequence numbers below this one in that queue; '': all
--       [4] how much to read, bytes: at least one job, whatever its size
--       [5] from which size on a payload stays here
-- Returns [1] [2] what to pass as [2] and [3] to go on; 0 and '' if that was all
--         then, flat, per job: queue number, lease, how, payload, its end. `how` is
--         'whole'  the payload is there, and no end
--         'bare'   it stays here, and has no key "forkq"; its two ends are there
--         'once'   the same, but it says "forkq" once
--         'large'  it stays here, and must be read by itself
--
-- A hash of another type holds no leases.

local owner, first, below = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local left, LARGE = tonumber(ARGV[4]), tonumber(ARGV[5])
local HEAD, TAIL = 512, 4096
local found, last = { 0, '' }, 2

local function leases_of(hash)
  local mine, all = {}, redis.pcall('HKEYS', hash)
  if all.err and not all.err:find('WRONGTYPE', 1, true) then redis.call('HKEYS', hash) end
  for _, lease in ipairs(all.err and {} or all) do
    local sequence = lease:sub(1, #owner) == owner and (tonumber(lease:sub(#owner + 1)) or 0)
    if sequence and (not below or sequence < below) then
      mine[#mine + 1] = { lease = lease, sequence = sequence }
    end
  end
  table.sort(mine, function(a, b) return a.sequence > b.sequence end)
  return mine
end

-- A quote within a JSON string is escaped: "forkq" with both quotes is a key, or a whole string.
local function seen(payload)
  local _, last = payload:find('"forkq"', 1, true)
  if not last then
    return payload:sub(1, 1) == '{' and payload:sub(-1) == '}' and 'bare' or 'large'
  end
  return payload:find('"forkq"', last, true) and 'large' or 'once'
end

local function add(k, lease, payload)
  local how, finish = 'whole', ''
  if #payload >= LARGE then
    how, finish = seen(payload), payload:sub(-TAIL)
    payload = payload:sub(1, HEAD)
  end
  found[last + 1], found[last + 2], found[last + 3] = k, lease, how
  found[last + 4], found[last + 5] = payload, finish
  last = last + 5
end

for k = first, #KEYS do
  local before
  for _, job in ipairs(leases_of(KEYS[k])) do
    if left <= 0 and job.sequence ~= before then
      found[1], found[2] = k, string.format('%.0f', before or job.sequence + 1)
      return found
    end
    local payload = redis.call('HGET', KEYS[k], job.lease)
    left, before = left - #payload, job.sequence
    add(k, job.lease, payload)
  end
  below = nil
end
return found
