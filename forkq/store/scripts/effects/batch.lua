-- Part of effects.lua: the effects on the batch of which a job is a member, or a callback. Each has the number of
-- its first key, and how many batches there are in the chain (batch.lua).

--- @include "batch"

-- The hash, or an error reply for either key that holds another type.
local function look_at_batch(hash, effect)
  local found = batch.read(hash)
  if found and found.err then return found end
  local kind = redis.pcall('TYPE', KEYS[effect[2] + 1]).ok
  if kind ~= 'string' and kind ~= 'none' then return { err = 'WRONGTYPE' } end
  return found or false
end

-- A member has ended, or waits again: the effect has its index, its state, its way and its jid.
effect_kinds.batch = {
  look = look_at_batch,
  write = function(_, effect, found)
    local chain = batch.chain(effect[2], effect[3])
    if found then batch.settle(chain, 1, effect[4], effect[5], effect[6], effect[7], found) end
    return true
  end,
}

-- A member has failed, and is retried: the effect has its index and its jid.
effect_kinds.batch_failing = {
  look = function(hash) return redis.pcall('HLEN', hash) end,
  write = function(hash, effect, size)
    if size > 0 and size < MOST_LISTED then redis.pcall('HSET', hash, 'failing:' .. effect[4], effect[5]) end
    return true
  end,
}

-- A callback has ended, or waits again: the effect has its letter and its state.
effect_kinds.batch_called = {
  look = look_at_batch,
  write = function(hash, effect, found)
    if not found then return true end
    local name, state = 'called_' .. effect[4], effect[5]
    if state == 0 then
      redis.pcall('HDEL', hash, name)
    else
      redis.pcall('HSET', hash, name, state)
    end
    found[name] = state ~= 0 and state or nil
    batch.look_round(batch.chain(effect[2], effect[3]), 1, found)
    return true
  end,
}
