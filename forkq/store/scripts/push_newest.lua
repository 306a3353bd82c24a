-- Pushes jobs of which at most one waits: each in the place of that one, or as an entry of its own.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the retry set   [4] the queues with marked jobs
--       [5] how jobs have ended   [6] the locks with a newest job   [7] the pushes that have met a doubted lock
--       [8] the results that the leader is to write   then per job: the list of its queue, its lock, its result, and
--       what is known of its jid (once.lua); of the last two each that it has
-- ARGV  per job: the number of the key of its lock; its queue; when it is due, epoch seconds ('' for now);
--       how many seconds from now it expires (0: its payload has no placeholder); its payload, its jid, its
--       class, for how many seconds it has the lock from its due time on, 1 if its jid may be known (else 0), the
--       placeholder of its result ('': none), and for how many milliseconds from its due time on it may wait
--       until that is gone
-- Returns 1 if the names of the queues are noted, then 1 for each job, or 2 if it was pushed before; in the place of
--         either the error of the refusal.
--
-- The placeholder, a byte that no JSON text has, gives way to the moment in Redis's time.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "ticket_push"
--- @include "once"
--- @include "placeholder"

local MOMENT = '\1'
local replies, named = { 1 }, {}

-- Before the first job: a queue without its name is not seen.
local function name(queue)
  if named[queue] then return end
  named[queue] = true
  replies[1] = refusal_of('SADD', KEYS[1], queue) or replies[1]
end

local function adder(list)
  return function(job)
    if job.at ~= '' then return refusal_of('ZADD', KEYS[2], job.at, job.payload) or 1 end
    name(job.queue)
    local refusal = refusal_of('LPUSH', list, job.payload)
    if refusal then return refusal end
    note_if_marked(KEYS[4], job.queue, job.payload)
    return 1
  end
end

local function push(i)
  local list, lock = KEYS[ARGV[i] - 1], KEYS[tonumber(ARGV[i])]
  local queue, at, expires_in, payload, jid, class, seconds, may_be_known = unpack(ARGV, i + 1, i + 8)
  local placeholder, waits_for = unpack(ARGV, i + 9, i + 10)
  local result = placeholder ~= '' and KEYS[ARGV[i] + 1]
  local push_key = may_be_known == '1' and KEYS[ARGV[i] + (result and 2 or 1)]
  local known = push_key and known_push(push_key, {}, KEYS[5], class)
  if known then return known end
  local now = now_in_ms() / 1000
  if expires_in ~= '0' then payload = payload:gsub(MOMENT, string.format('%.6f', now + expires_in)) end
  local delay = math.max(0, (tonumber(at) or now) - now)
  local job = { queue = queue, at = at, payload = payload, jid = jid, class = class,
    milliseconds = 1000 * (delay + seconds) }
  local place = { lock = lock, index = KEYS[6], schedule = KEYS[2], retry = KEYS[3], totals = KEYS[5] }
  place.doubted, place.notes = KEYS[7], KEYS[8]
  local reply = push_newest(place, job, adder(list))
  if reply == 1 and push_key then note_push(push_key) end
  if reply == 1 and result then await_result(result, placeholder, 1000 * delay + waits_for, KEYS[5]) end
  return reply
end

for i = 1, #ARGV, 11 do replies[#replies + 1] = push(i) end
return replies
