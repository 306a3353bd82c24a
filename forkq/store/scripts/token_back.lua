-- Part of isolate.lua and retry.lua: a job that was fetched and not run gives the token back that it cost
-- its queue's rate (fetch/rates.lua).

-- `start` is what the names of the queue's keys begin with. A bucket without a key is full, and what is
-- above the burst is cut when it is read. Call it after a removal: a full server refuses it before.
local function give_token_back(start)
  local bucket = redis.pcall('GET', start .. 'bucket')
  local tokens, counted_at = (type(bucket) == 'string' and bucket or ''):match('^(%S+) (%S+)$')
  if not tonumber(tokens) then return end
  redis.pcall('SET', start .. 'bucket', string.format('%.9f %s', tokens + 1, counted_at), 'KEEPTTL')
end
