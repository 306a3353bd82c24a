-- Finds the jobs of a class in a list of suspects that are no suspects: they wait there because their
-- class is held. Counts them, or returns them to the head of their queue; a part of the list at a time.
--
-- KEYS  [1] the list of suspects   [2] the list of the queue   [3] the set of the queues that have
--       suspects   [4] the set of queue names
-- ARGV  [1] the name of the queue   [2] where to begin in the list, from its tail   [3] how many jobs to
--       look at, about   [4] 1 to return them, 0 to count them   [5 ..] texts, one of which is in the
--       payload of each job of the class
-- Returns [1] where to go on; -1 if that was all   [2] how many jobs it found
--
-- It begins with the youngest, so that the oldest ends at the head of the queue. The texts may also
-- stand in the arguments of another job. That one does no harm: if it must run alone, the child that
-- fetches it puts it back. A job leaves the list of suspects after it was added to the queue, and the
-- SREM of nothing comes first: see retry.lua.

local STEP = 25 -- payloads that are read at once: each may be large
local BYTES = 1048576 -- of payloads, after which it stops
local at, left, moves = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local found, bytes = 0, 0

local function has(payload, text) return payload:find(text, 1, true) ~= nil end

local function is_wanted(payload)
  if has(payload, '"suspect":true') or has(payload, '"suspect": true') then return false end
  for i = 5, #ARGV do
    if has(payload, ARGV[i]) then return true end
  end
  return false
end

local function move(payload)
  redis.call('RPUSH', KEYS[2], payload)
  redis.call('LREM', KEYS[1], 1, payload)
end

if moves then redis.call('SREM', KEYS[3], '') end
repeat
  local page, stay = redis.call('LRANGE', KEYS[1], at, at + STEP - 1), 0
  for _, payload in ipairs(page) do
    local wanted = is_wanted(payload)
    if wanted then found = found + 1 end
    if wanted and moves then move(payload) else stay = stay + 1 end
    bytes = bytes + #payload
  end
  at, left = at + stay, left - #page
  if #page < STEP then at = -1 end
until at == -1 or left <= 0 or bytes > BYTES

if moves and found > 0 then redis.call('SADD', KEYS[4], ARGV[1]) end
if moves and redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SREM', KEYS[3], ARGV[1]) end
return { at, found }
