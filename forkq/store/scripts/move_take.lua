-- Takes a page of jobs of one queue out of their place, for another shard; or gives the page that is
-- under way. Both places of a page, here and there, are changed by one script each (move_put.lua).
--
-- KEYS  [1] the hash of the moves   [2] the list with the page under way   [3] where the jobs are
--       [4] the set of the queues that have suspects
--       for periodic jobs [3] has the definitions, then: [5] last ticks   [6] jids of the latest jobs
--       [7] the names of the paused ones
-- ARGV  [1] the queue   [2] 'queued', 'suspects', 'scheduled', 'retrying', 'dead', 'periodic'; ''
--       takes nothing   [3] the name of the move of this queue, if it has none yet   [4] the number of
--       the last page, as the caller knows it   [5] how many jobs to take at most, and
--       [6] about how many bytes
--       then of a set its members, of periodic jobs each name and its definition
-- Returns the name of the move, the number of its last page, what is in that ('': it has arrived), and
-- the page: of a set score and member in turn; of periodic jobs name, definition, last tick, jid of the
-- latest job, and 1 if it is paused.
--
-- A page that is under way comes first, also if another kind was asked for. Numbers only rise, and a page is taken
-- only by a caller that knows the last one: so a call that comes late takes nothing. Jobs leave a list
-- by the end where they are pushed: the youngest go first, each before those that went already.
-- The jobs are removed last, and the HDEL of nothing comes first: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former
local state = redis.call('HGET', KEYS[1], ARGV[1]) or ARGV[3] .. ' 0 '
local id, number, kind = state:match('^(%S+) (%d+) (%S*)$')
local most, bytes_left = tonumber(ARGV[5]), tonumber(ARGV[6])
local page, remove = {}, nil

local function from_list()
  local step, count = 4, 0 -- doubles as long as the jobs are small
  while count < most and bytes_left > 0 do
    local found = redis.call('LRANGE', KEYS[3], count, count + math.min(step, most - count) - 1)
    if #found == 0 then break end
    for _, payload in ipairs(found) do
      count, bytes_left = count + 1, bytes_left - #payload
      page[count] = payload
    end
    step = math.min(64, 2 * step)
  end
  remove = function() return redis.pcall('LTRIM', KEYS[3], count, -1) end
end

local function from_set()
  local members = {}
  for i = 7, #ARGV do
    local score = redis.call('ZSCORE', KEYS[3], ARGV[i])
    if score then
      members[#members + 1] = ARGV[i]
      page[#page + 1], page[#page + 2] = score, ARGV[i]
    end
  end
  remove = function() return redis.pcall('ZREM', KEYS[3], unpack(members)) end
end

local function from_periodic()
  local names = {}
  for i = 7, #ARGV, 2 do
    local name, definition = ARGV[i], ARGV[i + 1]
    if redis.call('HGET', KEYS[3], name) == definition then
      names[#names + 1] = name
      local last, latest = redis.call('HGET', KEYS[5], name), redis.call('HGET', KEYS[6], name)
      local paused = redis.call('SISMEMBER', KEYS[7], name)
      for _, value in ipairs({ name, definition, last or '', latest or '', tostring(paused) }) do
        page[#page + 1] = value
      end
    end
  end
  remove = function()
    local removed = redis.pcall('HDEL', KEYS[3], unpack(names))
    for key = 5, 6 do redis.pcall('HDEL', KEYS[key], unpack(names)) end
    redis.pcall('SREM', KEYS[7], unpack(names))
    return removed
  end
end

if kind == '' and ARGV[2] ~= '' and number == ARGV[4] then
  if ARGV[2] == 'queued' or ARGV[2] == 'suspects' then
    from_list()
  elseif ARGV[2] == 'periodic' then
    from_periodic()
  else
    from_set()
  end
  if #page > 0 then
    redis.call('HDEL', KEYS[1], '')
    redis.call('RPUSH', KEYS[2], unpack(page))
    local removed = remove()
    if type(removed) == 'table' and removed.err then
      redis.call('DEL', KEYS[2])
      return removed
    end
    number, kind = string.format('%d', number + 1), ARGV[2]
    redis.call('HSET', KEYS[1], ARGV[1], id .. ' ' .. number .. ' ' .. kind)
    if kind == 'suspects' and redis.call('EXISTS', KEYS[3]) == 0 then
      redis.pcall('SREM', KEYS[4], ARGV[1])
    end
  end
end
return { id, number, kind, redis.call('LRANGE', KEYS[2], 0, -1) }
