-- Moves jobs that are due from a sorted set to their queues, and returns those to move next.
--
-- KEYS  [1] the schedule or retry set   [2] the set of queue names   [3] the dead set   [4 ..] lists
-- ARGV  [1] now, epoch seconds   [2] how many members to return at most   [3] and about how many bytes
--       then per job: number of its list among KEYS (3 buries it), queue name, member, new payload
-- Returns when the first job is due that is not among those returned, epoch seconds ('' if there is
-- none, now if it did not look), then the queues that take nothing, then the members that are due
-- now, in order of time.
--
-- A job is moved only if this very member was still there. On a full server the removal, which comes
-- first, makes it take the rest. An error does not undo what a script has done: so whatever may fail
-- after the removal is caught, and the job goes elsewhere.

local lines, put_off = {}, {}

local function refused(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end

local function bury(payload)
  if refused('ZADD', KEYS[3], ARGV[1], payload) then
    redis.call('ZADD', KEYS[1], ARGV[1] + 60, payload) -- no grave either: tried again in a minute
  end
end

for i = 4, #ARGV, 4 do
  local list, queue, member, payload = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if redis.call('ZREM', KEYS[1], member) == 1 then
    if list == 3 then
      bury(payload)
    else
      lines[list] = lines[list] or { queue = queue }
      table.insert(lines[list], payload)
    end
  end
end

for list, line in pairs(lines) do
  redis.pcall('SADD', KEYS[2], line.queue)
  if refused('LPUSH', KEYS[list], unpack(line)) then -- something else is in the list's place
    put_off[#put_off + 1] = line.queue
    for _, payload in ipairs(line) do
      if refused('ZADD', KEYS[1], ARGV[1] + 60, payload) then bury(payload) end
    end
  end
end

-- One by one: how long a member is, nobody knows before it is read.
local answer, most, room = { '', put_off }, tonumber(ARGV[2]), tonumber(ARGV[3])
while true do
  if #answer - 1 > most or room <= 0 then
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
  room = room - #head[1]
end
return answer
