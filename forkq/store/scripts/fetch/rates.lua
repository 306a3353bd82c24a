-- Part of fetch.lua: the token bucket of a queue with a rate. Each job taken costs one token.

local buckets = {} -- by queue, once read

-- A bucket without a key is full. A rate without a burst lets one job start at once, and as many as
-- it gives in a tenth of a second, so that a fetch that is a little late wastes no tokens.
local function bucket_of(queue)
  if buckets[queue] then return buckets[queue] end
  local rule, time = rules[queue], call('TIME')
  local per_second, now = rule.tokens / rule.seconds, tonumber(time[1]) * 1e6 + tonumber(time[2])
  local burst = math.max(1, rule.burst or 1 + per_second / 10)
  local tokens, found = burst, read('GET', KEYS[places[queue] + BUCKET]) or ''
  local left, counted_at = found:match('^(%S+) (%S+)$')
  left, counted_at = tonumber(left), tonumber(counted_at)
  -- A count from the future was made by a server whose clock was wrong: it is ignored.
  if left and counted_at and counted_at <= now then
    tokens = math.min(burst, left + (now - counted_at) * per_second / 1e6)
  end
  buckets[queue] = { tokens = tokens, burst = burst, at = now, per_second = per_second }
  return buckets[queue]
end

-- Writes the bucket back without these tokens. Its key expires when it is full again.
local function spend(queue, tokens)
  local bucket = buckets[queue]
  bucket.tokens = bucket.tokens - tokens
  local value = string.format('%.9f %.0f', bucket.tokens, bucket.at)
  local full_in = 1000 * (bucket.burst - bucket.tokens) / bucket.per_second
  local lasts = string.format('%.0f', math.min(full_in + 1, HUGE))
  call('SET', KEYS[places[queue] + BUCKET], value, 'PX', lasts)
end
