-- Part of effects.lua: a member of a batch has ended, or waits again. The effect has the number of its first key,
-- how many batches there are in the chain (batch.lua), its index, its state, its way and its jid.

-- What the calls before have read of each batch: the ends of 25 jobs in a call are often of one. Only the end below
-- changes it; once the part with the rarer effects is defined, all is read anew.
local numbers_of = {}

local function read_numbers(hash, ends)
  local numbers = redis.pcall('HMGET', hash, 'state', 'total', 'done', 'dead', 'other', 'failing')
  return refusal_of_batch(numbers, ends) or numbers
end

-- Settles the end that nearly all members have: one is done that has waited, and is not the last one.
-- Returns whether that was all. `numbers`: state, total, done, dead, other and failing, as they were.
local function settle_done(hash, ends, member, numbers)
  local left = tonumber(numbers[2] or 0) or 0
  for i = 3, 5 do left = left - (tonumber(numbers[i] or 0) or 0) end
  if left < 2 or (numbers[6] or '0') ~= '0' or member >= tonumber(numbers[2]) then return false end
  local old = redis.pcall('BITFIELD', ends, 'SET', 'u2', '#' .. member, 1)[1]
  if old == 1 then return true end
  if old ~= 0 then
    redis.pcall('BITFIELD', ends, 'SET', 'u2', '#' .. member, old)
    return false
  end
  local done = tonumber(redis.pcall('HINCRBY', hash, 'done', 1))
  numbers[3] = done
  if done and done % 32 == 1 then
    redis.pcall('EXPIRE', hash, BATCH_LIVES)
    redis.pcall('EXPIRE', ends, BATCH_LIVES)
  end
  return true
end

effect_kinds.batch = {
  look = function(hash, effect)
    local numbers = not effect_kinds.batch_settled and numbers_of[hash]
      or read_numbers(hash, KEYS[effect[2] + 1])
    numbers_of[hash] = not numbers.err and numbers or nil
    return numbers
  end,
  write = function(hash, effect, numbers)
    if not numbers[1] then return true end
    local ends, is_done = KEYS[effect[2] + 1], effect[5] == 1 and effect[6] == 'done'
    if is_done and settle_done(hash, ends, effect[4], numbers) then return true end
    kind_of('batch_settled').write(effect)
    return true
  end,
}
