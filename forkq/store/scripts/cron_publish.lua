-- Changes definitions of periodic jobs, each only if it still stands as the publisher has read it.
--
-- KEYS  [1] definitions, by name   [2] last ticks   [3] jids of the latest jobs
-- ARGV  [1] a last tick that lies further ahead than so many seconds is a mistake
--       then per definition: its name, as it was read ('' if there was none), the new one ('' removes
--       it), 'afresh' if no tick before now is to be made up for
-- Returns the names of those that somebody else had changed meanwhile: nothing was done to these.
--
-- "Now" is the server's time: the caller's clock may be wrong. A full server refuses to add anything
-- before a removal, hence the removal of nothing. Last ticks never go back, or a tick could be
-- enqueued twice.

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
