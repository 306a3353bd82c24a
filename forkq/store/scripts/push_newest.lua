-- Pushes jobs of which at most one waits: each in the place of that one, or as an entry of its own.
--
-- KEYS  [1] the set of queue names   [2] the schedule   [3] the retry set   [4] the queues with marked jobs
--       [5] how jobs have ended   [6] the locks with a newest job   [7] the pushes that have met a doubted lock
--       then per job: the list of its queue, its lock
-- ARGV  per job: the number of the key of its lock; its queue; when it is due, epoch seconds ('' for now);
--       how many seconds from now it expires (0: its payload has no placeholder); its payload, its jid, its
--       class, and for how many seconds it has the lock from its due time on
-- Returns 1 if the names of the queues are noted, then 1 for each job; in the place of either the error of the
--         refusal.
--
-- The placeholder, a byte that no JSON text has, gives way to the moment in Redis's time.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "ticket_push"

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

for i = 1, #ARGV, 8 do
  local list, lock = KEYS[ARGV[i] - 1], KEYS[tonumber(ARGV[i])]
  local queue, at, expires_in, payload, jid, class, seconds = unpack(ARGV, i + 1, i + 7)
  local now = now_in_ms() / 1000
  if expires_in ~= '0' then payload = payload:gsub(MOMENT, string.format('%.6f', now + expires_in)) end
  local delay = math.max(0, (tonumber(at) or now) - now)
  local job = { queue = queue, at = at, payload = payload, jid = jid, class = class,
    milliseconds = 1000 * (delay + seconds) }
  local place = { lock = lock, index = KEYS[6], schedule = KEYS[2], retry = KEYS[3], totals = KEYS[5] }
  place.doubted = KEYS[7]
  replies[#replies + 1] = push_newest(place, job, adder(list))
end
return replies
