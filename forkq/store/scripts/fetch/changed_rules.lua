-- Part of fetch.lua: pauses, and the rules changed at run time, which win over those of the caller. If
-- the caller has not named the keys of such a queue, the script takes nothing and asks for them.

local CHUNK = 1000 -- of how many queues one command asks

-- A value of "none" lifts the rule of the caller; a value that cannot be read changes nothing.
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
  local rule = rules[queue]
  local found = read('HMGET', KEYS[places[queue] + CONTROL], 'limit', 'process_limit', 'rate', 'burst') or {}
  rule.limit = number(found[1], '^%d+$', rule.limit)
  rule.process_limit = number(found[2], '^%d+$', rule.process_limit)
  change_rate(rule, found[3])
  rule.burst = number(found[4], '^[%d.]+$', rule.burst)
end

local function ask_for_keys(queue)
  local asked = answer[3]
  local last = #asked
  asked[last + 1], asked[last + 2], asked[last + 3] = queue, 'unkeyed', 0
  want, answer[2] = 0, 1
end

local names = {}
for queue = 1, queues do names[queue] = KEYS[2 * queue + 2]:match('{queue:(.*)}:inflight$') end
for first = 1, queues, CHUNK do
  local last = math.min(first + CHUNK - 1, queues)
  local is_paused = read('SMISMEMBER', KEYS[1], unpack(names, first, last)) or {}
  local is_controlled = read('HMGET', KEYS[2], unpack(names, first, last)) or {}
  for queue = first, last do
    paused[queue] = is_paused[queue - first + 1] == 1
    if not is_controlled[queue - first + 1] then
      -- as the caller has it
    elseif rules[queue] then
      change_rule(queue)
    else
      ask_for_keys(queue)
    end
  end
end
