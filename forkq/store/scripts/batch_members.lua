-- Part of push.lua and batch_change.lua: a batch gets members.

-- The index of the next member; or nothing, and why the batch takes none. `via`: the index of the member that
-- pushes; '' for the block of the batch.
local function next_member(hash, ends, via)
  local values = redis.pcall('HMGET', hash, 'state', 'total')
  if values.err then return nil, values end
  local state, open = values[1] or '', { open = true, broken = via ~= '', sealed = via ~= '' }
  local is_open = open[state]
  if is_open and via ~= '' then
    local old = redis.pcall('BITFIELD', ends, 'GET', 'u2', '#' .. via)
    if old.err then return nil, old end
    is_open = old[1] == 0
  end
  if not is_open then
    return nil, { err = 'BATCHFINISHED the batch ' .. hash:match('[^:]*$') .. ' takes no members any more' }
  end
  return tonumber(values[2] or 0)
end

-- `now`: epoch seconds.
local function add_members(hash, count, now)
  redis.pcall('HINCRBY', hash, 'total', count)
  redis.pcall('HSET', hash, 'pushed_at', string.format('%.0f', now))
  redis.pcall('EXPIRE', hash, 180 * 86400)
end
