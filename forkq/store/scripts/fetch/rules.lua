-- Part of fetch.lua: the rules of the caller, by queue, and what else they are checked against.

local HUGE = 1000000000000 -- no number of a rule is as large, and no time to wait as long

local next_place = 2 * tonumber(ARGV[7]) + 2 + tonumber(ARGV[8]) + 1
local rules = {}
places = {}
for _ = 1, rule_count do
  local queue, blocks = argument(), {}
  rules[queue] = { limit = argument(), process_limit = argument(), tokens = argument(),
                   seconds = argument(), burst = argument(), blocks = blocks }
  for i = 1, argument() do blocks[i] = argument() end
  places[queue], next_place = next_place, next_place + PER_RULE
end

local in_flight -- by queue, how many jobs the owner has in flight; nil if it did not count
local counted = argument()
if counted then
  in_flight = {}
  for _ = 1, counted do in_flight[argument()] = argument() end
end

local paused, blocker = {}, {} -- by queue: whether it is paused, and which queue blocks it
local reasons = {} -- by queue: why it gives no more
local lengths, running = {}, {} -- by queue: its jobs waiting and in progress, once they were read

-- The reply to a command that reads; nil if the key is damaged.
local function read(command, key, ...)
  local reply = pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  check_damage(reply, command, key, ...)
end

local function length(queue)
  lengths[queue] = lengths[queue] or size_of(queue, 1, 'LLEN')
  return lengths[queue]
end

local function in_progress(queue)
  running[queue] = running[queue] or size_of(queue, 2, 'HLEN')
  return running[queue]
end

local ENOUGH = 100
local TURN_SECONDS = 15 -- a solo child that waits writes its note again every 5 s

local is_solo = owner:find(':solo%x+/$') or owner:find('/solo-$')
local waiting_solo = {} -- by queue: how many solo children a rule keeps waiting, once counted

-- How many permits and tokens an ordinary child leaves to solo children. They wait only while there
-- are none: if more than enough are `free` beyond what is wanted, no child waits.
local function left_to_solo(queue, free)
  if is_solo or free > ENOUGH then return 0 end
  if not waiting_solo[queue] then
    local count, notes = 0, read('HVALS', KEYS[places[queue] + TURN]) or {}
    local now = notes[1] and tonumber(call('TIME')[1])
    for _, at in ipairs(notes) do
      if now - (tonumber(at) or 0) < TURN_SECONDS then count = count + 1 end
    end
    -- Only one of many that wait gets the last suspect: the notes of the others stay for a while.
    if count > 0 then count = math.min(count, tonumber(read('LLEN', KEYS[places[queue] + SUSPECTS]) or 0)) end
    waiting_solo[queue] = count
  end
  return waiting_solo[queue]
end

local function block_others(queue)
  for _, later in ipairs(rules[queue].blocks) do blocker[later] = blocker[later] or queue end
end
