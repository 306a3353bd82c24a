-- Looks for one job in all keys at the same moment. Changes nothing.
--
-- KEYS  in-flight hashes, then lists, then sorted sets
-- ARGV  [1] the jid as it is in JSON, with its quotes
--       [2] how many of KEYS are hashes  [3] how many are lists
--       [4] how much to read: bytes, each payload counting 256 more
-- Returns 1 if everything was read, 0 if not; then, flat, each payload that may be the job: number of
-- the key, lease or score or '', payload.
--
-- Hashes and both ends of lists are always read: there are no more jobs in flight than processors,
-- and jobs that are pushed or returned arrive at an end. Once enough was read, find_job_in_list.lua
-- and ZSCAN read the rest. Most queues have no suspects: of an empty list only the length is read.

local jid, hashes, lists = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last, left = hashes + lists, tonumber(ARGV[4])
local END, LARGE = 20, 131072
local found, lengths, waiting = { 1 }, {}, 0

local function check(k, where, payload)
  left = left - #payload - 256
  local at = payload:find(jid, 1, true)
  while at do
    if payload:sub(math.max(1, at - 16), at - 1):find('"jid"%s*:%s*$') then
      for _, part in ipairs({ k, where, payload }) do found[#found + 1] = part end
      return
    end
    at = payload:find(jid, at + 1, true)
  end
end

-- A key of another type is no queue and no set of forkq. Any other error is raised.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'number' or not reply.err then return reply end
  if reply.err:find('WRONGTYPE', 1, true) then return {} end
  error(reply.err)
end

local function in_list(k, from, step) -- from the right end on
  local payloads = read('LRANGE', KEYS[k], -from - step, -from - 1)
  for _, payload in ipairs(payloads) do check(k, '', payload) end
  return #payloads
end

local function in_set(k, from, step)
  local members = read('ZRANGE', KEYS[k], from, from + step - 1, 'WITHSCORES')
  for i = 1, #members, 2 do check(k, members[i + 1], members[i]) end
  return #members / 2 -- only compared
end

local function walk(k, read_part, from)
  local step, before = 4, left -- the step doubles as long as the payloads are small
  while found[1] == 1 and read_part(k, from, step) == step do
    if left < 0 then found[1] = 0 end
    from = from + step
    step = before - left > LARGE and math.max(1, math.floor(step / 2)) or math.min(256, step * 2)
    before = left
  end
end

local function length(k)
  local reply = read(k > last and 'ZCARD' or 'LLEN', KEYS[k])
  return type(reply) == 'number' and reply or 0
end

for k = 1, hashes do
  local leases = read('HGETALL', KEYS[k])
  for i = 1, #leases, 2 do check(k, leases[i], leases[i + 1]) end
end
for k = hashes + 1, #KEYS do
  lengths[k] = length(k)
  waiting = waiting + lengths[k]
end
for k = hashes + 1, last do
  if lengths[k] > 0 then in_list(k, 0, END) end
  if lengths[k] > END then
    for _, payload in ipairs(read('LRANGE', KEYS[k], 0, END - 1)) do check(k, '', payload) end
  end
end

if waiting * 256 > left then -- too many, even if all are small: the script does not begin
  found[1] = 0
  return found
end
for k = last + 1, #KEYS do walk(k, in_set, 0) end
for k = hashes + 1, last do
  if lengths[k] > END then walk(k, in_list, END) end
end
return found
