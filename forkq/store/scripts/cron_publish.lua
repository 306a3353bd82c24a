-- Changes definitions of periodic jobs. Each changes only if it still is as the publisher read it.
--
-- KEYS  [1] definitions, by name   [2] last ticks   [3] jids of the latest jobs
-- ARGV  [1] by how many seconds a last tick may be ahead; more is a mistake
--       then per definition: its name, as it was read ('' if there was none), the new one ('' removes
--       it), 'afresh' if ticks before now shall not be enqueued late
-- Returns the names of those that another publisher changed meanwhile: the script left these alone.
--
-- "Now" is the server's time, because the caller's clock may be wrong. Last ticks never go back, or a
-- tick could be enqueued twice. The HDEL of nothing is for a full server: see retry.lua.

local now, changed_meanwhile = redis.call('TIME')[1], {}
local ceiling = now + ARGV[1]
redis.call('HDEL', KEYS[1], '')
for i = 2, #ARGV, 4 do
  local name, before, after, mode = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if (redis.call('HGET', KEYS[1], name) or '') ~= before then
    changed_meanwhile[#changed_meanwhile + 1] = name
  elseif after == '' then
    redis.call('HDEL', KEYS[1], name)
    redis.call('HDEL', KEYS[2], name)
    redis.call('HDEL', KEYS[3], name)
  else
    if mode == 'afresh' then
      local last = tonumber(redis.call('HGET', KEYS[2], name) or '')
      if not last or last < tonumber(now) or last > ceiling then
        redis.call('HSET', KEYS[2], name, now)
      end
    end
    redis.call('HSET', KEYS[1], name, after)
  end
end
return changed_meanwhile
