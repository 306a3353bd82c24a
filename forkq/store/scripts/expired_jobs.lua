-- Ends the jobs of a page of a list that have expired.
--
-- KEYS  [1] the list   [2] how jobs have ended
-- ARGV  [1] how many entries were looked at before, counted from the right end, where jobs are fetched
--       [2] how many to look at, at most   [3] and about how many bytes
-- Returns how many of the entries that it has looked at are still there, how many jobs it has ended, when
-- the first one of the others expires ('' if none does), and 1 if the list goes on. Then the expired jobs
-- whose other features the caller must end with them: how many entries are between the first of them and
-- the right end, the same of the last, and the jobs.
--
-- The same text may stand in the arguments of a plain job: so only what has it as its own key ends. A job
-- above 256 KiB is left to the child that fetches it. A mark takes the place of each job that ends, and all
-- marks are removed at once; no other client ever sees one. The LTRIM of nothing is for a full server: see
-- jobs_move/list.lua.

--- @include "needs"
--- @include "ended"

local MOST_ENDED = 128 -- and up to as many more: to end one takes five times as long as to look at it
local MOST_OTHERS = 100
local LARGE, MARK = 262144, '\0removed by expired_jobs'
local unpack = table.unpack or unpack -- Lua 5.4 has the former
local seconds, micros = unpack(redis.call('TIME'))
local now = seconds + micros / 1000000 -- only compared

local function expiry(payload)
  local needs = #payload <= LARGE and needs_in(payload)
  return needs and tonumber(expiry_in(needs) or '')
end

-- Of a job that has expired, its class, and whether it has other features, too, or was pushed by a tick, whose history
-- notes the end; nothing of any other.
local function class_if_expired(payload)
  local is_json, job = pcall(cjson.decode, payload)
  local marks = is_json and type(job) == 'table' and job.forkq
  local needs = type(marks) == 'table' and marks.needs
  local moment = type(needs) == 'table' and needs.expires_at
  if type(moment) ~= 'number' or moment > now then return nil end
  local class = type(job.wrapped) == 'string' and job.wrapped or job.class
  local has_others = marks.cron or next(needs) ~= 'expires_at' or next(needs, 'expires_at') ~= nil
  return type(class) == 'string' and class:sub(1, 200) or '(unregistered)', has_others
end

local from, most, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local size = redis.pcall('LLEN', KEYS[1])
if type(size) == 'table' then return { 0, 0, '', 0, 0, 0 } end -- another type: no list of forkq
local looked, ended, earliest, step = 0, 0, nil, 4
local others, first_place, last_place = {}, 0, 0

local function look_at(entry)
  local moment = expiry(entry)
  local class, has_others
  if moment and moment <= now then class, has_others = class_if_expired(entry) end
  if not class then
    if moment and moment > now and (not earliest or moment < earliest) then earliest = moment end
    return
  end
  if has_others then
    last_place = from + looked - 1 - ended
    if #others == 0 then first_place = last_place end
    others[#others + 1] = entry
    return
  end
  if ended == 0 then redis.call('LTRIM', KEYS[1], 0, -1) end
  redis.call('LSET', KEYS[1], -(from + looked), MARK)
  count_end(KEYS[2], 'expired', class)
  ended = ended + 1
end

while looked < most and ended < MOST_ENDED and #others < MOST_OTHERS and bytes_left > 0
  and from + looked < size do
  local first = from + looked
  local part = redis.call('LRANGE', KEYS[1], -(first + math.min(step, most - looked)), -first - 1)
  for i = #part, 1, -1 do
    looked, bytes_left = looked + 1, bytes_left - #part[i]
    look_at(part[i])
  end
  step = math.min(128, 2 * step)
end
if ended > 0 then redis.call('LREM', KEYS[1], 2 * from < size and -ended or ended, MARK) end
local text = earliest and string.format('%.6f', earliest) or ''
local goes_on = from + looked < size and 1 or 0
return { looked - ended, ended, text, goes_on, first_place, last_place, unpack(others) }
