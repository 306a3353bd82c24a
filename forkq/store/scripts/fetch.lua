-- Acknowledges what is done and takes what is wanted, in one round trip.
--
-- KEYS  [1] the set of paused queues   [2] the hash of those whose rules were changed at run time
--       then per queue: its list, its in-flight hash. First come the queues to take from, group
--       by group in the capsule's order; after them may come queues to acknowledge in only.
-- ARGV  [1] how many payloads to take at most
--       [2] the owner: a lease is owner .. sequence
--       [3] the sequence number of the first payload taken; the rest count up from it
--       [4] seed of the draw between groups by weight; 0 takes strictly in order
--       [5] from how many queues to take
--       then, each list preceded by its length, and none at the end that is not needed:
--       done     queue, how many to acknowledge, and their sequence numbers
--       groups   how many queues, weight, 1 to take from them in turn; no group: each queue in order
--       rules    queue, limit, process limit, tokens, per seconds, burst ('': none of it), and how
--                many queues it blocks, and their numbers
--       held     queue, how many of its jobs the owner has in flight beside those it acknowledges;
--                no such list: not counted
-- Returns  [1] 1 if a lease to acknowledge was gone
--          [2] 1 if a registration of the caller's from before does not tell of all that it may
--              take next: the script set a mark, or left jobs that would make its answer too large
--          [3] if less was taken than wanted, why: of each queue that is not just empty its number,
--              the reason, and with `dry` the microseconds until it has a token, with `blocked` the
--              number of the other, with `damaged` 1 for its list, 2 for its in-flight hash; a damaged
--              queue is named also if enough was taken elsewhere
--          [4] the damaged keys that it met: each holds another type than it should
--          [5 ..] queue number, payload, queue number, payload, ... in sequence order
--
-- Other keys of a queue stand beside its in-flight hash: `control` (hash: rules set at run time),
-- `bucket` (string: tokens, and when they were counted), `full` and `busy`.
--
-- Whoever waits for a slot waits for a mark, not for the hash, which changes with every job: `full`
-- says that nobody has given a slot back since the queue was full, `busy` that its jobs in progress
-- have not become fewer. Every script that removes a lease without taking another deletes both.
--
-- The first write is always a removal, so that it works on a server that is full. Reading comes
-- before taking: a damaged queue is skipped while every payload is still in its list.
--
-- An answer holds about BYTES of payloads, and one job: how long a payload is can only be seen by
-- reading it, so few are read at first.

local call, pcall, tonumber, KEYS, ARGV = redis.call, redis.pcall, tonumber, KEYS, ARGV
local BYTES, STEP = 524288, 16
local LIST, LEASES = 1, 2 -- places of a queue's keys

local want, owner, sequence = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local seed, queues, at = tonumber(ARGV[4]), tonumber(ARGV[5]), 6
local freed, moved = {}, {} -- leases removed and added, by queue
local damaged, broken = {}, {} -- keys; and by queue which of its two
local space = BYTES
local answer = { 0, 0, {}, damaged }

-- What both ways read with

-- The reply; nil if the key is damaged. Any other refusal is raised.
local function ask(command, key, ...)
  local reply = pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not reply.err:find('WRONGTYPE', 1, true) then return call(command, key, ...) end
  for _, known in ipairs(damaged) do
    if known == key then return end
  end
  damaged[#damaged + 1] = key
end

-- The same of a queue's list or in-flight hash; `otherwise` if that is damaged: the queue is skipped.
local function ask_queue(queue, place, otherwise, command, ...)
  local reply = ask(command, KEYS[2 * queue + place], ...)
  if reply then return reply end
  broken[queue] = place
  return otherwise
end

-- What is done

for _ = 1, tonumber(ARGV[6]) do
  local queue, count, gone = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), {}
  at = at + 2
  for i = 1, count do gone[i] = owner .. ARGV[at + i] end
  at = at + count
  local found = pcall('HDEL', KEYS[2 * queue + LEASES], unpack(gone))
  if type(found) == 'table' then found = ask_queue(queue, LEASES, 0, 'HDEL', unpack(gone)) end
  freed[queue] = found
  if freed[queue] < count then answer[1] = 1 end
  -- Told again, perhaps, after an error further down had kept the first time from waking others.
  if want == 0 then freed[queue] = count end
end

-- What both ways end with

-- The server refuses to take payloads from the list: they stay there.
local function unlease(queue, leased, taken)
  for i = 1, taken do call('HDEL', KEYS[2 * queue + LEASES], leased[2 * i - 1]) end
  call('LTRIM', KEYS[2 * queue + LIST], '0', -taken - 1) -- raises the refusal
end

-- Moves up to `count` payloads, as many as there are and there is space for. Returns how many.
local function move(queue, count)
  local list, leased, last, taken, step = KEYS[2 * queue + LIST], {}, #answer, 0, STEP
  repeat
    local asked = math.min(step, count - taken)
    -- Numbers as text where they can be: Redis converts others slowly.
    local from, to = -taken - asked, taken == 0 and '-1' or -taken - 1
    local found = pcall('LRANGE', list, from, to)
    if found.err then found = ask_queue(queue, LIST, {}, 'LRANGE', from, to) end
    if found[1] and not freed[queue] and taken == 0 then ask_queue(queue, LEASES, 0, 'HDEL', '') end
    if broken[queue] then return 0 end
    for i = #found, 1, -1 do
      if space <= 0 then break end
      local payload = found[i]
      space = space - #payload
      taken = taken + 1
      leased[2 * taken - 1], leased[2 * taken] = owner .. sequence, payload
      sequence = sequence + 1
      answer[last + 1], answer[last + 2] = queue, payload
      last = last + 2
    end
    step = 2 * step
  until taken == count or space <= 0 or #found < asked
  if taken == 0 then return 0 end
  -- Leased before they leave their list: should the server refuse one of the two, no job is lost.
  call('HSET', KEYS[2 * queue + LEASES], unpack(leased))
  if pcall('LTRIM', list, '0', -taken - 1).err then unlease(queue, leased, taken) end
  moved[queue] = (moved[queue] or 0) + taken
  return taken
end

local function finish()
  for queue, count in pairs(freed) do
    if count > (moved[queue] or 0) then -- wakes others
      local mark = KEYS[2 * queue + LEASES]:sub(1, -9)
      call('DEL', mark .. 'full', mark .. 'busy')
    end
  end
  if want > 0 and space <= 0 then answer[2] = 1 end
  for queue, place in pairs(broken) do
    local found = answer[3]
    local last = #found
    found[last + 1], found[last + 2], found[last + 3] = queue, 'damaged', place
  end
  return answer
end

-- The short way: in order, and no rule in force. To set up the long one takes as long as all that
-- the short one does (docs/decisions/010).

local changed = want > 0 and call('EXISTS', KEYS[1], KEYS[2]) > 0

if want == 0 or (at == #ARGV and not changed) then
  for queue = 1, queues do
    if want == 0 or space <= 0 then break end
    want = want - move(queue, want)
  end
  return finish()
end

-- The long way

local function argument()
  at = at + 1
  return tonumber(ARGV[at])
end

local function leases(queue) return KEYS[2 * queue + LEASES] end
local function beside(queue, name) return leases(queue):sub(1, -9) .. name end

local function room(queue, most)
  if broken[queue] or space <= 0 then return 0 end
  return math.min(most, ask_queue(queue, LIST, 0, 'LLEN'))
end
local tell_of -- with rules: told of what was taken
local explain -- with rules: why there is no more to take

-- Everything about rules stands in here, to be set up only where there are some: that takes as long
-- as a fetch without (docs/decisions/010). `count` is how many rules the caller sent.
local function enforce(count)
  local MARK_SECONDS, CHUNK = 60, 1000
  local HUGE = 1e12 -- no number of a rule is as large, and no time to wait as long
  local rules, paused, blocker = {}, {}, {}
  local held, counted = {}, false
  local out = {} -- why a queue is out of reach
  local lengths, running, buckets = {}, {}, {}

  -- Rules of the caller

  for _ = 1, count do
    local queue, blocks = argument(), {}
    local rule = { limit = argument(), process_limit = argument(), tokens = argument(),
                   seconds = argument(), burst = argument(), blocks = blocks }
    for i = 1, argument() do blocks[i] = argument() end
    rules[queue] = rule
  end

  local function read_held()
    local length = argument()
    counted = length ~= nil
    for _ = 1, length or 0 do held[argument()] = argument() end
  end

  -- Rules changed at run time, which win

  -- "none" lifts what the caller sent; what cannot be read changes nothing.
  local function number(found, pattern, value)
    if found == 'none' then return nil end
    local given = found and found:match(pattern) and tonumber(found)
    return given and given < HUGE and given or value
  end

  local function change_rate(rule, found)
    if found == 'none' then rule.tokens = nil end
    local tokens, seconds = (found or ''):match('^([%d.]+)/([%d.]+)$')
    tokens, seconds = tonumber(tokens), tonumber(seconds)
    if tokens and seconds and tokens < HUGE and seconds < HUGE then
      rule.tokens, rule.seconds, rule.burst = tokens, seconds, nil
    end
  end

  local function change_rule(queue)
    local rule = rules[queue] or { blocks = {} }
    local control = beside(queue, 'control')
    local found = ask('HMGET', control, 'limit', 'process_limit', 'rate', 'burst') or {}
    rule.limit = number(found[1], '^%d+$', rule.limit)
    rule.process_limit = number(found[2], '^%d+$', rule.process_limit)
    change_rate(rule, found[3])
    rule.burst = number(found[4], '^[%d.]+$', rule.burst)
    rules[queue] = rule
  end

  local function look_for_changes()
    local names = {}
    for queue = 1, queues do names[queue] = leases(queue):match('{queue:(.*)}:inflight$') end
    for first = 1, queues, CHUNK do
      local last = math.min(first + CHUNK - 1, queues)
      local is_paused = ask('SMISMEMBER', KEYS[1], unpack(names, first, last)) or {}
      local is_controlled = ask('HMGET', KEYS[2], unpack(names, first, last)) or {}
      for queue = first, last do
        paused[queue] = is_paused[queue - first + 1] == 1
        if is_controlled[queue - first + 1] then change_rule(queue) end
      end
    end
  end

  -- What a queue has to give

  local function length(queue)
    lengths[queue] = lengths[queue] or ask_queue(queue, LIST, 0, 'LLEN')
    return lengths[queue]
  end

  local function in_progress(queue)
    running[queue] = running[queue] or ask_queue(queue, LEASES, 0, 'HLEN')
    return running[queue]
  end

  -- A bucket that is not there is full. Without a burst of its own a rate lets one job through at
  -- once, and what a tenth of a second earns, so that a fetch that is a little late loses nothing.
  local function bucket_of(queue)
    if buckets[queue] then return buckets[queue] end
    local rule, time = rules[queue], call('TIME')
    local per_second, now = rule.tokens / rule.seconds, tonumber(time[1]) * 1e6 + tonumber(time[2])
    local burst = math.max(1, rule.burst or 1 + per_second / 10)
    local tokens, found = burst, ask('GET', beside(queue, 'bucket')) or ''
    local left, counted_at = found:match('^(%S+) (%S+)$')
    left, counted_at = tonumber(left), tonumber(counted_at)
    -- One from the future was counted by a clock that was wrong.
    if left and counted_at and counted_at <= now then
      tokens = math.min(burst, left + (now - counted_at) * per_second / 1e6)
    end
    buckets[queue] = { tokens = tokens, burst = burst, at = now, per_second = per_second }
    return buckets[queue]
  end

  local function spend(queue, tokens)
    local bucket = buckets[queue]
    bucket.tokens = bucket.tokens - tokens
    local value = string.format('%.9f %.0f', bucket.tokens, bucket.at)
    local full_in = 1000 * (bucket.burst - bucket.tokens) / bucket.per_second
    local lasts = string.format('%.0f', math.min(full_in + 1, HUGE))
    call('SET', beside(queue, 'bucket'), value, 'PX', lasts)
  end

  -- 0, and in `out` why
  local function reject(queue, why)
    out[queue] = why
    return 0
  end

  local function closed(rule)
    return rule.limit == 0 or rule.process_limit == 0
      or (rule.tokens and (rule.tokens <= 0 or rule.seconds <= 0))
  end

  local function room_by_rule(queue, rule, most)
    if closed(rule) then return reject(queue, 'closed') end
    if rule.tokens then
      most = math.min(most, math.floor(bucket_of(queue).tokens))
      if most < 1 then return reject(queue, 'dry') end
    end
    if rule.process_limit then
      if not counted then return reject(queue, 'uncounted') end
      most = math.min(most, rule.process_limit - (held[queue] or 0))
      if most < 1 then return reject(queue, 'held') end
    end
    if length(queue) == 0 then return reject(queue, 'empty') end
    if rule.limit then
      most = math.min(most, rule.limit - in_progress(queue))
      if broken[queue] then return 0 end
      if most < 1 then return reject(queue, 'full') end
    end
    return math.min(most, length(queue))
  end

  room = function(queue, most)
    if out[queue] or broken[queue] or space <= 0 then return 0 end
    if paused[queue] then return reject(queue, 'paused') end
    if blocker[queue] then return reject(queue, 'blocked') end
    if rules[queue] then return room_by_rule(queue, rules[queue], most) end
    if length(queue) == 0 then return reject(queue, 'empty') end
    return math.min(most, length(queue))
  end

  local function block_others(queue)
    for _, later in ipairs(rules[queue].blocks) do blocker[later] = blocker[later] or queue end
  end

  tell_of = function(queue, taken)
    lengths[queue] = lengths[queue] - taken
    if running[queue] then running[queue] = running[queue] + taken end
    held[queue] = (held[queue] or 0) + taken
    if buckets[queue] then spend(queue, taken) end
    if rules[queue] then block_others(queue) end
  end

  -- Why there is no more

  local function mark(queue, name)
    local key = beside(queue, name)
    if call('EXISTS', key) == 1 then return end
    call('HDEL', leases(queue), '')
    call('SET', key, '', 'EX', MARK_SECONDS)
    answer[2] = 1
  end

  local function detail_of(queue, why)
    if why == 'full' then mark(queue, 'full') end
    if why == 'blocked' then
      mark(blocker[queue], 'busy')
      return blocker[queue]
    end
    if why ~= 'dry' then return 0 end
    local bucket = buckets[queue]
    return math.max(1, math.min(HUGE, math.ceil((1 - bucket.tokens) * 1e6 / bucket.per_second)))
  end

  local function reason(queue)
    room(queue, 1)
    if broken[queue] then return 'empty' end -- named with all the damaged ones
    local rule = rules[queue]
    local holds_up = out[queue] == 'empty' and rule and #rule.blocks > 0 and in_progress(queue) > 0
    return holds_up and 'busy' or out[queue]
  end

  explain = function()
    local found = answer[3]
    for queue = 1, queues do
      local why = reason(queue)
      if why ~= 'empty' then
        local last = #found
        found[last + 1], found[last + 2], found[last + 3] = queue, why, detail_of(queue, why)
      end
    end
  end

  read_held()
  if changed then look_for_changes() end
  for queue, rule in pairs(rules) do
    if #rule.blocks > 0 and in_progress(queue) > 0 then block_others(queue) end
  end
end

-- Taking

local function take(queue, most)
  local count = room(queue, most)
  if count == 0 then return 0 end
  count = move(queue, count)
  if count == 0 then return 0 end
  if tell_of then tell_of(queue, count) end
  return count
end

-- One from each queue that has some, then one more from each, and so on.
local function take_in_turn(first, last, most)
  local rooms, shares, left = {}, {}, most
  for queue = first, last do rooms[queue], shares[queue] = room(queue, most), 0 end
  local before
  repeat
    before = left
    for queue = first, last do
      if left > 0 and shares[queue] < rooms[queue] then
        shares[queue] = shares[queue] + 1
        left = left - 1
      end
    end
  until left == before
  local got = 0
  for queue = first, last do
    if shares[queue] > 0 then got = got + take(queue, shares[queue]) end
  end
  if got < most - left and space > 0 then -- some turned out to be damaged: the others get their turns
    got = got + take_in_turn(first, last, most - got)
  end
  return got
end

local function take_in_order(first, last, most)
  local got = 0
  for queue = first, last do
    if got == most then break end
    got = got + take(queue, most - got)
  end
  return got
end

local function take_from(group, most)
  if most == 0 then return 0 end
  return (group.fair and take_in_turn or take_in_order)(group.first, group.last, most)
end

-- One draw per payload, never per batch; a group that has no more to give leaves the draw.
local function take_by_weight(groups)
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

local function read_groups()
  local groups, last = {}, 0
  for group = 1, argument() or 0 do
    local first = last + 1
    last = last + argument()
    groups[group] = { first = first, last = last, weight = argument(), fair = argument() == 1 }
  end
  return groups
end

local groups = read_groups()
local rules = argument() or 0
if rules > 0 or changed then enforce(rules) end
if seed ~= 0 then
  take_by_weight(groups)
elseif #groups > 0 then
  for _, group in ipairs(groups) do want = want - take_from(group, want) end
else
  want = want - take_in_order(1, queues, want)
end
if want > 0 and space > 0 and explain then explain() end
return finish()
