-- Part of each script about signals: a hash for each event has the signal that has come, in the field without a
-- name, and by their jids the jobs that wait for it.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

local function now_in_seconds()
  local seconds, micros = unpack(redis.call('TIME'))
  return string.format('%s.%06d', seconds, micros)
end

-- The signal that has come, if there is one: since when (`at`), until when jobs get it (`stays`), whether one job
-- only gets it, and what a step remembers of it.
local function signal_in(raw)
  if type(raw) ~= 'string' then return nil end
  local at, stays, one, data = raw:match('^(%d+%.?%d*) (%d+%.?%d*) (%d) (.*)$')
  if not at then return nil end
  local text = '{"at":' .. at .. ',"signal":{"at":' .. at .. ',"data":' .. data .. '}}'
  return { at = tonumber(at), stays = tonumber(stays), one = one == '1', text = text }
end

-- Whether a job gets this signal that waits since then, and until then.
local function is_for(signal, since, till)
  return signal and signal.stays >= tonumber(since) and signal.at <= tonumber(till)
end

-- A job has got the signal.
local function note_taken(event, signal, jid)
  redis.pcall('HDEL', event, jid)
  if signal.one then redis.pcall('HDEL', event, '') end
end

-- Whether a step waits still. What is remembered of one that does begins with its time-out.
local function waits(remembered) return type(remembered) == 'string' and remembered:sub(1, 9) == '{"until":' end

local function keep(event, seconds)
  local left = redis.pcall('PTTL', event)
  if type(left) == 'number' and left < seconds * 1000 then
    redis.pcall('EXPIRE', event, string.format('%.0f', math.ceil(seconds)))
  end
end
