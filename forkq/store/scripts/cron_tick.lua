-- Enqueues or records one tick of a periodic job, unless that tick or a later one is done already.
--
-- KEYS  [1] last ticks   [2] jids of the latest jobs   [3] the entry's runs   [4] definitions
--       [5] the set of queue names   [6] the queue's list   [7] the queues with marked jobs
--       of a job with a lock or a throttle: [8] how jobs have ended   [9] its lock   [10] the pushes that have met a
--       doubted lock   [11] the locks with a newest job   [12] the schedule   [13] the retry set   [14] its window
--       [15] the results that the leader is to write
-- ARGV  [1] name   [2] the tick, whole epoch seconds
--       [3] a line for the runs   [4] how many lines to keep   [5] seconds until the runs expire
--       [6] payload; '' enqueues nothing and only records the tick   [7] its jid   [8] its queue
--       [9] 'skip' if it must not run while the latest job runs
--       [10] jid of a latest job that is known to be gone
--       [11] a line for the runs if the queue refuses the job
--       of such a job: [12] its class   [13] for how many seconds it has the lock   [14] the letter that
--       push.lua has for the lock ('': it has none); 'n' where at most one job waits (ticket_push.lua); 'd' of a
--       debounced job: then what push_debounced.lua is told of it: [15] after, [16] at the latest, [17] its expiry
--       [18] how many are pushed in [19] how many milliseconds ('': as many as there are)
-- Returns a pair: 'enqueued' or 'noted' and the tick; 'late' and the last tick that is done;
--         'duplicate' and the jid of the job that has the lock ('' if its window is used up), 'pending' and the jid that may still run, or 'gone' if the definition is gone (the
--         script changed nothing); 'refused' and the reason.
--
-- So a second call, after a lost reply or a change of leader, changes nothing. Redis does not undo
-- a script that fails, so the tick is recorded first, and the commands after it must not fail.
-- The HDEL of nothing is for a full server: see retry.lua. The runs hold JSON lines, newest first;
-- forkq/cron/history.py describes them.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "marked"
--- @include "ended"
--- @include "now"
--- @include "lock"
--- @include "doubt"
--- @include "ticket_push"
--- @include "debounce"
--- @include "throttle"

local name, tick = ARGV[1], tonumber(ARGV[2])
local last = tonumber(redis.call('HGET', KEYS[1], name) or '')
if last and last >= tick and last < 2 ^ 53 then return { 'late', string.format('%.0f', last) } end

if redis.call('HEXISTS', KEYS[4], name) == 0 then return { 'gone', '' } end

local pushes = ARGV[6] ~= ''
if pushes and ARGV[9] == 'skip' then
  local latest = redis.pcall('HGET', KEYS[2], name)
  if type(latest) == 'string' and latest ~= ARGV[10] then return { 'pending', latest } end
end

local kind, most, milliseconds = ARGV[14] or '', ARGV[18] or '', ARGV[19]
local gives_way = kind == 'n' or kind == 'd'
local holder = pushes and kind ~= '' and not gives_way and holder_of(KEYS[9])
if type(holder) == 'string' and holder ~= '' and holder ~= ARGV[7] then
  count_end(KEYS[8], 'duplicate', ARGV[12])
  note_if_doubted(KEYS[10], KEYS[9], '', ARGV[14] ~= 'f' and ARGV[6])
  return { 'duplicate', holder }
end

if pushes and most ~= '' and is_used_up(KEYS[14], 0, most, milliseconds, KEYS[8]) then
  count_end(KEYS[8], 'throttled', ARGV[12])
  return { 'duplicate', '' }
end

local function push()
  if not gives_way then return redis.pcall('LPUSH', KEYS[6], ARGV[6]) end
  if kind == 'd' then
    local job = { payload = ARGV[6], jid = ARGV[7], class = ARGV[12] }
    job.after, job.most, job.expires_in = ARGV[15], ARGV[16], ARGV[17]
    return push_debounced(KEYS[12], KEYS[8], KEYS[15], KEYS[9], job)
  end
  local place = { totals = KEYS[8], lock = KEYS[9], doubted = KEYS[10], index = KEYS[11] }
  place.schedule, place.retry, place.notes = KEYS[12], KEYS[13], KEYS[15]
  local job = { payload = ARGV[6], jid = ARGV[7], queue = ARGV[8], class = ARGV[12], at = '' }
  job.milliseconds = 1000 * ARGV[13]
  return push_newest(place, job, function() return refusal_of('LPUSH', KEYS[6], ARGV[6]) or 1 end)
end

redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], name, ARGV[2])

local outcome, detail, line = 'noted', ARGV[2], ARGV[3]
if pushes then
  local pushed = push()
  if type(pushed) == 'table' and pushed.err then
    outcome, detail, line = 'refused', pushed.err, ARGV[11]
  else
    outcome = 'enqueued'
    redis.pcall('SADD', KEYS[5], ARGV[8])
    note_if_marked(KEYS[7], ARGV[8], ARGV[6])
    redis.pcall('HSET', KEYS[2], name, ARGV[7])
    if type(holder) == 'string' then
      take_lock(KEYS[9], ARGV[7], ARGV[12], in_text(1000 * ARGV[13]), holder == '', ARGV[14] == 'e')
    end
    if most ~= '' then note_in_window(KEYS[14], 1, most, milliseconds) end
  end
end
redis.pcall('LPUSH', KEYS[3], line)
redis.pcall('LTRIM', KEYS[3], 0, tonumber(ARGV[4]) - 1)
redis.pcall('EXPIRE', KEYS[3], ARGV[5])
return { outcome, detail }
