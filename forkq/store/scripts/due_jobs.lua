-- Moves jobs that are due from a sorted set to their queues, and returns those to move next.
--
-- KEYS  [1] the schedule or retry set   [2] the set of queue names   [3] the dead set   [4 ..] lists
-- ARGV  [1] now, epoch seconds   [2] how many members to return at most   [3] and about how many bytes
--       then per job: number of its list among KEYS (3 buries it), queue name, member, new payload
-- Returns when the first job is due that is not among those returned, epoch seconds ('' if there is
-- none, now if the script did not look), then the queues that refused jobs, then the members that
-- are due now, in order of time.
--
-- A job is moved only if this very member was still there. The first write is a removal, so that a
-- full server takes the rest. Redis does not undo a script that fails: so the script catches what may
-- fail after the removal, and adds the job elsewhere.

local batches, refusing = {}, {}

local function is_refused(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end

local function bury(payload)
  if is_refused('ZADD', KEYS[3], ARGV[1], payload) then
    redis.call('ZADD', KEYS[1], ARGV[1] + 60, payload) -- tries again in a minute
  end
end

for i = 4, #ARGV, 4 do
  local list, queue, member, payload = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if redis.call('ZREM', KEYS[1], member) == 1 then
    if list == 3 then
      bury(payload)
    else
      batches[list] = batches[list] or { queue = queue }
      table.insert(batches[list], payload)
    end
  end
end

for list, batch in pairs(batches) do
  redis.pcall('SADD', KEYS[2], batch.queue)
  if is_refused('LPUSH', KEYS[list], unpack(batch)) then -- the key holds another type
    refusing[#refusing + 1] = batch.queue
    for _, payload in ipairs(batch) do
      if is_refused('ZADD', KEYS[1], ARGV[1] + 60, payload) then bury(payload) end
    end
  end
end

-- One by one, because the size of a member is only known once it was read.
local answer, most, bytes_left = { '', refusing }, tonumber(ARGV[2]), tonumber(ARGV[3])
while true do
  if #answer - 1 > most or bytes_left <= 0 then
    answer[1] = ARGV[1]
    break
  end
  local head = redis.call('ZRANGE', KEYS[1], #answer - 2, #answer - 2, 'WITHSCORES')
  if not head[1] then break end
  if tonumber(head[2]) > tonumber(ARGV[1]) then
    answer[1] = head[2]
    break
  end
  answer[#answer + 1] = head[1]
  bytes_left = bytes_left - #head[1]
end
return answer
