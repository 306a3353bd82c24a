-- Ends the page of a move that is under way: it has arrived on the other shard, or goes back.
--
-- KEYS  [1] the hash of the moves   [2] the list with the page   [3] where its jobs were
--       [4] the set of the queues that have suspects
-- ARGV  [1] the queue   [2] the number of the page   [3] 'arrived' or 'back'
-- Returns 1, or 0 if that page is no longer under way. Periodic jobs do not go back.

local state = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local id, number, kind = state:match('^(%S+) (%d+) (%S+)$')
if number ~= ARGV[2] then return 0 end

redis.call('HDEL', KEYS[1], '') -- a full server takes a write after a removal
if ARGV[3] == 'back' then
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
