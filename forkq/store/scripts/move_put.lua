-- Puts a page that another shard has taken (move_take.lua) into its place here, once.
--
-- KEYS  [1] the hash of what has arrived   [2] the place of the jobs   [3] the set of queue names
--       [4] the set of the queues that have suspects   of jobs in a list: [5] the queues with marked jobs
--       for periodic jobs [2] has the definitions, then: [5] last ticks   [6] jids of the latest jobs
--       [7] the names of the paused ones
-- ARGV  [1] the queue   [2] the name of the move   [3] the number of the page   [4] what is in it, or
--       'barred': it is refused from now on
--       then the page, as move_take.lua gives it
-- Returns 1, 0 if this page is here already, or -1 if another page with its number, or a later one of
-- the move, is: so this call comes late, or the other shard has forgotten pages in a failover.
--
-- The number stays for ever, so that a call that comes late, however late, puts nothing here. Jobs of a
-- list go to its end where jobs are fetched: before those that were pushed here meanwhile, and before the
-- younger ones of the page before. A periodic job that is here already stays as it is.

local unpack = table.unpack or unpack -- Lua 5.4 has the former
local field = ARGV[1] .. ' ' .. ARGV[2]
local number, kind = tonumber(ARGV[3]), ARGV[4]
local page = ARGV[3] .. ' ' .. redis.sha1hex(table.concat(ARGV, '\n', 5))
local latest = redis.call('HGET', KEYS[1], field) or '0 '
if latest == page then return 0 end
if number <= tonumber(latest:match('^%d+')) then return -1 end
if kind == 'barred' then
  redis.call('HSET', KEYS[1], field, ARGV[3] .. ' barred')
  return 1
end

--- @include "marked"

local function add_to_list()
  redis.call('RPUSH', KEYS[2], unpack(ARGV, 5))
  redis.pcall('SADD', KEYS[3], ARGV[1])
  if kind == 'suspects' then redis.pcall('SADD', KEYS[4], ARGV[1]) end
  for i = 5, #ARGV do note_if_marked(KEYS[5], ARGV[1], ARGV[i]) end
end

local function add_periodic()
  for i = 5, #ARGV, 5 do
    local name, last, latest = ARGV[i], ARGV[i + 2], ARGV[i + 3]
    if redis.call('HEXISTS', KEYS[2], name) == 0 then
      redis.call('HSET', KEYS[2], name, ARGV[i + 1])
      if last ~= '' then redis.call('HSET', KEYS[5], name, last) end
      if latest ~= '' then redis.call('HSET', KEYS[6], name, latest) end
      if ARGV[i + 4] == '1' then redis.call('SADD', KEYS[7], name) end
    end
  end
end

if kind == 'queued' or kind == 'suspects' then
  add_to_list()
elseif kind == 'periodic' then
  add_periodic()
else
  for i = 5, #ARGV, 2 do redis.call('ZADD', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', KEYS[1], field, page)
return 1
