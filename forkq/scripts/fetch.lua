-- Acknowledges what is done and takes what is wanted, in one round trip.
--
-- KEYS  [1] the set of paused queues   [2] the hash of those whose rules were changed at run time
--       then per queue: its list, its in-flight hash. First come the queues to take from, group
--       by group in the capsule's order; after them may come queues to acknowledge in only.
-- ARGV  [1] how many payloads to take at most
--       [2] the owner: a lease is owner .. sequence
--       [3] the sequence number of the first payload taken; the rest count up from it
--       [4] seed of the draw between weighted groups; 0 takes strictly in order
--       [5] 1 if each group is one queue and there are no rules
--       then, each list preceded by its length:
--       groups   how many queues, weight, 1 to take from them in turn
--       rules    queue, limit, process limit, tokens, per seconds, burst ('': none of it), and how
--                many queues it blocks, and their numbers
--       held     queue, how many of its jobs the owner has in flight beside those it acknowledges
--       done     queue, how many to acknowledge, and their sequence numbers
-- Returns  [1] 1 if a lease to acknowledge was gone
--          [2] 1 if it set a mark: a registration of the caller's from before is void
--          [3] if less was taken than wanted, why: for each queue its number, the reason, and with
--              `dry` the microseconds until it has a token, with `blocked` the number of the other
--          [4 ..] queue number, payload, queue number, payload, ... in sequence order
--
-- Other keys of a queue stand beside its in-flight hash: `control` (hash: rules set at run time),
-- `bucket` (string: tokens, and when they were counted), `full` and `busy`.
--
-- Whoever waits for a slot waits for a mark, not for the hash, which changes with every job: `full`
-- says that nobody has given a slot back since the queue was full, `busy` that its jobs in progress
-- have not become fewer. Every script that removes a lease without taking another deletes both.
--
-- The first write is always a removal, so that it works on a server that is full. Reading comes
-- before taking: a key of the wrong type stops the script while every payload is still in its list.

local call, tonumber, KEYS, ARGV = redis.call, tonumber, KEYS, ARGV

-- The short way, where no rule is in force: the same moves without the books. It comes first, since
-- what follows takes as long to set up as these moves take (docs/decisions/010).
local function fetch_plainly()
  local want, owner, sequence, queues = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[6])
  local at = 8 + 3 * queues -- how many are held, then those, then how many to acknowledge
  at = at + 1 + 2 * tonumber(ARGV[at])
  local answer, freed = { 0, 0, {} }, {}
  for _ = 1, tonumber(ARGV[at]) do
    local queue, count, leases = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), {}
    at = at + 2
    for i = 1, count do leases[i] = owner .. ARGV[at + i] end
    at = at + count
    freed[queue] = call('HDEL', KEYS[2 * queue + 2], unpack(leases))
    if freed[queue] < count then answer[1] = 1 end
  end
  for queue = 1, queues do
    local count = want > 0 and math.min(want, call('LLEN', KEYS[2 * queue + 1])) or 0
    if count > 0 then
      call('HLEN', KEYS[2 * queue + 2])
      local leased = {}
      for i, payload in ipairs(call('RPOP', KEYS[2 * queue + 1], count)) do
        leased[2 * i - 1], leased[2 * i] = owner .. sequence, payload
        sequence = sequence + 1
        answer[#answer + 1] = queue
        answer[#answer + 1] = payload
      end
      call('HSET', KEYS[2 * queue + 2], unpack(leased))
      want = want - count
    end
    if (freed[queue] or 0) > count then
      local mark = KEYS[2 * queue + 2]:sub(1, -9)
      call('DEL', mark .. 'full', mark .. 'busy')
    end
  end
  for queue = 1, want > 0 and queues or 0 do
    local at = 3 * queue
    answer[3][at - 2], answer[3][at - 1], answer[3][at] = queue, 'empty', 0
  end
  return answer
end

if ARGV[4] == '0' and ARGV[5] == '1' and call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return fetch_plainly()
end

local MARK_SECONDS = 60

local want, owner, sequence = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local seed, at = tonumber(ARGV[4]), 5

local function argument()
  at = at + 1
  return tonumber(ARGV[at])
end

local function list(queue) return KEYS[2 * queue + 1] end
local function leases(queue) return KEYS[2 * queue + 2] end
local function beside(queue, name) return leases(queue):sub(1, -9) .. name end

local groups, rules, held, queues = {}, {}, {}, 0
local paused, blocker = {}, {}
local out = {} -- why a queue is out of reach
local freed, moved = {}, {} -- leases removed and added here
local lengths, running, tokens = {}, {}, {}
local answer = { 0, 0, {} }

-- What the caller sent

local function read_groups()
  for group = 1, argument() do
    local first = queues + 1
    queues = queues + argument()
    groups[group] = { first = first, last = queues, weight = argument(), fair = argument() == 1 }
  end
end

local function read_rules()
  for _ = 1, argument() do
    local queue, blocks = argument(), {}
    local rule = { limit = argument(), process_limit = argument(), tokens = argument(),
                   seconds = argument(), burst = argument(), blocks = blocks }
    for i = 1, argument() do blocks[i] = argument() end
    rules[queue] = rule
  end
end

local function read_held()
  for _ = 1, argument() do held[argument()] = argument() end
end

local function acknowledge()
  for _ = 1, argument() do
    local queue, sequences = argument(), {}
    local count = argument()
    for i = 1, count do sequences[i] = owner .. ARGV[at + i] end
    at = at + count
    freed[queue] = call('HDEL', leases(queue), unpack(sequences))
    if freed[queue] < count then answer[1] = 1 end
  end
end

-- What stands in Redis and wins

local function names()
  local found = {}
  for queue = 1, queues do found[queue] = leases(queue):match('{queue:(.*)}:inflight$') end
  return found
end

-- "none" lifts what the caller sent; what cannot be read changes nothing.
local function changed(found, pattern, value)
  if found == 'none' then return nil end
  return found and found:match(pattern) and tonumber(found) or value
end

local function change_rate(rule, found)
  if found == 'none' then rule.tokens = nil end
  local count, seconds = (found or ''):match('^([%d.]+)/([%d.]+)$')
  if tonumber(count) and tonumber(seconds) then
    rule.tokens, rule.seconds, rule.burst = tonumber(count), tonumber(seconds), nil
  end
end

local function change_rule(queue)
  local rule = rules[queue] or { blocks = {} }
  local found = call('HMGET', beside(queue, 'control'), 'limit', 'process_limit', 'rate', 'burst')
  rule.limit = changed(found[1], '^%d+$', rule.limit)
  rule.process_limit = changed(found[2], '^%d+$', rule.process_limit)
  change_rate(rule, found[3])
  rule.burst = changed(found[4], '^[%d.]+$', rule.burst)
  rules[queue] = rule
end

local function look_for_changes()
  if queues == 0 or call('EXISTS', KEYS[1], KEYS[2]) == 0 then return end
  local all = names()
  local is_paused = call('SMISMEMBER', KEYS[1], unpack(all))
  local is_controlled = call('HMGET', KEYS[2], unpack(all))
  for queue = 1, queues do
    paused[queue] = is_paused[queue] == 1
    if is_controlled[queue] then change_rule(queue) end
  end
end

-- What a queue has to give

local function length(queue)
  lengths[queue] = lengths[queue] or call('LLEN', list(queue))
  return lengths[queue]
end

local function in_progress(queue)
  running[queue] = running[queue] or call('HLEN', leases(queue))
  return running[queue]
end

local function now()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- A bucket that is not there is full. Without a burst of its own a rate lets one job through at
-- once, and what a tenth of a second earns, so that a fetch that is a little late loses nothing.
local function token_count(queue, rule)
  if tokens[queue] then return tokens[queue].count end
  local per_second = rule.tokens / rule.seconds
  local burst, moment = math.max(1, rule.burst or 1 + per_second / 10), now()
  local bucket = call('GET', beside(queue, 'bucket'))
  local count = burst
  if bucket then
    local left, counted = bucket:match('^(%S+) (%S+)$')
    local earned = math.max(0, moment - tonumber(counted)) * per_second / 1000000
    count = math.min(burst, tonumber(left) + earned)
  end
  tokens[queue] = { count = count, burst = burst, at = moment, per_second = per_second }
  return count
end

local function spend(queue, count)
  local bucket = tokens[queue]
  bucket.count = bucket.count - count
  local value = string.format('%.9f %.0f', bucket.count, bucket.at)
  local full_in = 1000 * (bucket.burst - bucket.count) / bucket.per_second
  call('SET', beside(queue, 'bucket'), value, 'PX', string.format('%.0f', full_in + 1))
end

local function reject(queue, why)
  out[queue] = why
  return 0
end

local function closed(rule)
  return rule.limit == 0 or rule.process_limit == 0
    or (rule.tokens and (rule.tokens <= 0 or rule.seconds <= 0))
end

-- How many of `most` may be taken from it now. 0 leaves in `out` why not.
local function reach(queue, most)
  if out[queue] then return 0 end
  if paused[queue] then return reject(queue, 'paused') end
  if blocker[queue] then return reject(queue, 'blocked') end
  local rule = rules[queue]
  if rule then
    if closed(rule) then return reject(queue, 'closed') end
    if rule.tokens and token_count(queue, rule) < 1 then return reject(queue, 'dry') end
    if rule.process_limit and (held[queue] or 0) >= rule.process_limit then return reject(queue, 'held') end
  end
  if length(queue) == 0 then return reject(queue, 'empty') end
  local count, already = math.min(most, length(queue)), in_progress(queue)
  if rule then
    if rule.limit then count = math.min(count, rule.limit - already) end
    if count <= 0 then return reject(queue, 'full') end
    if rule.tokens then count = math.min(count, math.floor(token_count(queue, rule))) end
    if rule.process_limit then count = math.min(count, rule.process_limit - (held[queue] or 0)) end
  end
  return count
end

local function block_others(queue)
  for _, later in ipairs(rules[queue].blocks) do blocker[later] = blocker[later] or queue end
end

local function take(queue, most)
  local count = reach(queue, most)
  if count == 0 then return 0 end
  local payloads, leased = call('RPOP', list(queue), count), {}
  for i, payload in ipairs(payloads) do
    leased[2 * i - 1] = owner .. sequence
    leased[2 * i] = payload
    sequence = sequence + 1
    answer[#answer + 1] = queue
    answer[#answer + 1] = payload
  end
  call('HSET', leases(queue), unpack(leased))
  moved[queue] = (moved[queue] or 0) + count
  lengths[queue] = lengths[queue] - count
  running[queue] = running[queue] + count
  held[queue] = (held[queue] or 0) + count
  if tokens[queue] then spend(queue, count) end
  if rules[queue] then block_others(queue) end
  return count
end

-- One from each queue that has some, then one more from each, and so on.
local function take_in_turn(group, count)
  local room, share, left = {}, {}, count
  for queue = group.first, group.last do room[queue], share[queue] = reach(queue, count), 0 end
  local before
  repeat
    before = left
    for queue = group.first, group.last do
      if left > 0 and share[queue] < room[queue] then
        share[queue] = share[queue] + 1
        left = left - 1
      end
    end
  until left == before
  local got = 0
  for queue = group.first, group.last do
    if share[queue] > 0 then got = got + take(queue, share[queue]) end
  end
  return got
end

local function take_from(group, count)
  if count <= 0 then return 0 end
  if group.fair then return take_in_turn(group, count) end
  local got = 0
  for queue = group.first, group.last do
    if got == count then break end
    got = got + take(queue, count - got)
  end
  return got
end

local function take_in_order()
  for _, group in ipairs(groups) do want = want - take_from(group, want) end
end

-- One draw per payload, never per batch; a group that has no more to give leaves the draw.
local function take_by_weight()
  math.randomseed(seed)
  local total, last = 0, #groups
  for _, group in ipairs(groups) do total = total + group.weight end
  while want > 0 and total > 0 do
    local drawn = {}
    for g = 1, last do drawn[g] = 0 end
    for _ = 1, want do
      local point, g = math.random() * total, 1
      while point >= groups[g].weight and g < last do
        point = point - groups[g].weight
        g = g + 1
      end
      drawn[g] = drawn[g] + 1
    end
    for g, group in ipairs(groups) do
      local got = take_from(group, drawn[g])
      want = want - got
      if got < drawn[g] then
        total = total - group.weight
        group.weight = 0
      end
    end
  end
end

-- What the others and the caller must be told

local function wake_others()
  for queue, count in pairs(freed) do
    if count > (moved[queue] or 0) then
      call('DEL', beside(queue, 'full'), beside(queue, 'busy'))
    end
  end
end

local function mark(queue, name)
  local key = beside(queue, name)
  if call('EXISTS', key) == 1 then return end
  call('HDEL', leases(queue), '')
  call('SET', key, '', 'EX', MARK_SECONDS)
  answer[2] = 1
end

local function microseconds_left(queue)
  local bucket = tokens[queue]
  return math.max(1, math.ceil((1 - bucket.count) * 1000000 / bucket.per_second))
end

local function explain()
  local found = {}
  for queue = 1, queues do
    reach(queue, 1)
    local why, detail = out[queue], 0
    if why == 'full' then mark(queue, 'full') end
    if why == 'dry' then detail = microseconds_left(queue) end
    if why == 'blocked' then
      detail = blocker[queue]
      mark(detail, 'busy')
    end
    local rule = rules[queue]
    if why == 'empty' and rule and #rule.blocks > 0 and in_progress(queue) > 0 then why = 'busy' end
    found[3 * queue - 2], found[3 * queue - 1], found[3 * queue] = queue, why, detail
  end
  return found
end

read_groups()
read_rules()
read_held()
acknowledge()
look_for_changes()
for queue, rule in pairs(rules) do
  if #rule.blocks > 0 and in_progress(queue) > 0 then block_others(queue) end
end
if seed == 0 then take_in_order() else take_by_weight() end
wake_others()
if want > 0 then answer[3] = explain() end
return answer
