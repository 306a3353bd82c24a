-- Part of fetch.lua: how many jobs a queue can give under its rules, and what taking them changes.

local function reject(queue, reason)
  reasons[queue] = reason
  return 0
end

-- A limit of 0, or a rate of 0, lets no job start.
local function is_closed(rule)
  return rule.limit == 0 or rule.process_limit == 0
    or (rule.tokens and (rule.tokens <= 0 or rule.seconds <= 0))
end

local function room_by_rule(queue, rule, count)
  if is_closed(rule) then return reject(queue, 'closed') end
  if rule.tokens then
    local tokens = math.floor(bucket_of(queue).tokens)
    count = math.min(count, tokens - left_to_solo(queue, tokens - count))
    if count < 1 then return reject(queue, 'dry') end
  end
  if rule.process_limit then
    if not in_flight then return reject(queue, 'uncounted') end
    count = math.min(count, rule.process_limit - (in_flight[queue] or 0))
    if count < 1 then return reject(queue, 'process_limit') end
  end
  if length(queue) == 0 then return reject(queue, 'empty') end
  if rule.limit then
    local permits = rule.limit - in_progress(queue)
    count = math.min(count, permits - left_to_solo(queue, permits - count))
    if damaged[queue] then return 0 end
    if count < 1 then return reject(queue, 'full') end
  end
  return math.min(count, length(queue))
end

local function room(queue, count)
  if reasons[queue] or damaged[queue] or bytes_left <= 0 then return 0 end
  if paused[queue] then return reject(queue, 'paused') end
  if blocker[queue] then return reject(queue, 'blocked') end
  if rules[queue] then return room_by_rule(queue, rules[queue], count) end
  if length(queue) == 0 then return reject(queue, 'empty') end
  return math.min(count, length(queue))
end

local function take(queue, count)
  count = room(queue, count)
  if count == 0 then return 0 end
  local taken = move(queue, count)
  if taken == 0 then return 0 end
  lengths[queue] = lengths[queue] - taken
  if running[queue] then running[queue] = running[queue] + taken end
  if in_flight then in_flight[queue] = (in_flight[queue] or 0) + taken end
  if buckets[queue] then spend(queue, taken) end
  if rules[queue] then block_others(queue) end
  return taken
end

for queue, rule in pairs(rules) do
  if #rule.blocks > 0 and in_progress(queue) > 0 then block_others(queue) end
end
