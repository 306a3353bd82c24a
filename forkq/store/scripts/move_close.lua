-- Ends the page of a move that is under way: it has arrived on the other shard, or goes back. Or gives
-- the move another name, and leaves the page where it is.
--
-- KEYS  [1] the hash of the moves   [2] the list with the page   [3] where its jobs were
--       [4] the set of the queues that have suspects
-- ARGV  [1] the queue   [2] the name of the move   [3] the number of the page
--       [4] 'arrived', 'back' or 'renamed'   [5] the new name
-- Returns 1, or 0 if that page is no longer under way. Periodic jobs do not go back.

local state = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local id, number, kind = state:match('^(%S+) (%d+) (%S+)$')
if id ~= ARGV[2] or number ~= ARGV[3] then return 0 end

redis.call('HDEL', KEYS[1], '') -- a full server takes a write after a removal
if ARGV[4] == 'renamed' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[5] .. ' ' .. number .. ' ' .. kind)
  return 1
end
if ARGV[4] == 'back' then
  local page = redis.call('LRANGE', KEYS[2], 0, -1)
  if kind == 'queued' or kind == 'suspects' then
    for i = #page, 1, -1 do redis.call('LPUSH', KEYS[3], page[i]) end
    if kind == 'suspects' then redis.pcall('SADD', KEYS[4], ARGV[1]) end
  else
    for i = 1, #page, 2 do redis.call('ZADD', KEYS[3], page[i], page[i + 1]) end
  end
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], id .. ' ' .. number .. ' ')
return 1
