-- Part of effects.lua: the rarer effects on the batch of which a job is a member, or a callback. Each has the number
-- of its first key, and how many batches there are in the chain (batch.lua).

--- @include "batch"
--- @include "flow"

local function refusal_of_steps(steps)
  local kind = redis.pcall('TYPE', steps).ok
  return kind ~= 'hash' and kind ~= 'none' and { err = 'WRONGTYPE' }
end

effect_kinds.batch_settled = {
  write = function(effect)
    local chain = batch.chain(effect[2], effect[3])
    batch.settle(chain, 1, effect[4], effect[5], effect[6], effect[7])
  end,
}

-- A member has failed, and is retried: the effect has its index and its jid.
effect_kinds.batch_failing = {
  look = function(hash) return redis.pcall('HLEN', hash) end,
  write = function(hash, effect, size)
    if size == 0 or size > MOST_LISTED then return true end
    if redis.pcall('HSET', hash, 'failing:' .. effect[4], effect[5]) == 1 then
      redis.pcall('HINCRBY', hash, 'failing', 1)
    end
    return true
  end,
}

-- A callback has ended, or waits again: the effect has its letter and its state.
effect_kinds.batch_called = {
  look = function(hash, effect)
    local found = batch.read(hash)
    return refusal_of_batch(found, KEYS[effect[2] + 1]) or found or false
  end,
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

-- A step of a flow has ended, or waits again: the effect has its index, its state, its way, its jid, and what is kept
-- of its end. Behind the keys of the batches is that of the steps.
effect_kinds.flow = {
  look = function(_, effect)
    local place = flow.chain(effect[2], effect[3])[1]
    local found = batch.read(place.hash)
    return refusal_of_batch(found, place.ends) or refusal_of_steps(place.steps) or found or false
  end,
  write = function(_, effect, found)
    if not found then return true end
    local chain = flow.chain(effect[2], effect[3])
    if not batch.settle(chain, 1, effect[4], effect[5], effect[6], effect[7]) then return true end
    local steps, name = chain[1].steps, 'end:' .. effect[4]
    if effect[8] == '' then
      redis.pcall('HDEL', steps, name)
    else
      redis.pcall('HSET', steps, name, effect[8])
    end
    return true
  end,
}
