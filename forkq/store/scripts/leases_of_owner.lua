-- Lists what an owner has in flight, newest first within each queue, a part at a time. Changes
-- nothing.
--
-- KEYS  per queue: its in-flight hash
-- ARGV  [1] the owner: a lease is owner .. sequence number
--       [2] the queue to begin with   [3] only sequence numbers below this one in that queue; '': all
--       [4] how much to read, bytes: at least one job, even a large one
--       [5] a payload of this size or more is not sent whole
-- Returns [1] [2] what to pass as [2] and [3] to go on; 0 and '' if that was all
--         then, flat, per job: queue number, lease, how, payload, its end. `how` is
--         'whole'  the whole payload; the end is empty
--         'bare'   its two ends only; it has no key "forkq"
--         'ends'   its two ends only
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

-- JSON escapes a quote within a string. So "forkq" with both quotes is a key, or a whole string.
local function is_bare(payload)
  local is_object = payload:sub(1, 1) == '{' and payload:sub(-1) == '}'
  return is_object and not payload:find('"forkq"', 1, true)
end

local function add(k, lease, payload)
  local how, finish = 'whole', ''
  if #payload >= LARGE then
    how, finish = is_bare(payload) and 'bare' or 'ends', payload:sub(-TAIL)
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
