-- Part of isolate.lua and retry.lua: a job that was fetched and not run gives the token back that it cost
-- its queue's rate (fetch/rates.lua).

-- A bucket without a key is full, and what is above the burst is cut when it is read. Call it after a
-- removal: a full server refuses it before.
local function give_token_back(bucket)
  local found = redis.pcall('GET', bucket)
  local tokens, counted_at = (type(found) == 'string' and found or ''):match('^(%S+) (%S+)$')
  if not tonumber(tokens) then return end
  redis.pcall('SET', bucket, string.format('%.9f %s', tokens + 1, counted_at), 'KEEPTTL')
end
