-- Part of each script that ends a job or lets it go on: what the job's features ask together with that.
--
-- The script gets the effects of a job as JSON: the number of the key that counts how jobs have ended, then
-- of each effect its name, the number of its key, and its arguments. Nothing, or '', are none.
-- `look_at` reads what they need, before the job's first write. `write` changes it; it cannot fail, and may
-- run twice. The key of a feature that holds another type is left as it is: the job ends all the same.

--- @include "ended"

local effect_kinds, damaged_keys = {}, {}

--- @include "effects/lock"
--- @include "effects/cancel"
--- @include "effects/ticket"
--- @include "effects/debounce"
--- @include "effects/cursor"
--- @include "effects/batch"

local function look_at(text)
  if not text or text == '' then return {} end
  local effects = cjson.decode(text)
  local found = { totals = effects[1] }
  for i = 2, #effects do
    local effect = effects[i]
    local reply = effect_kinds[effect[1]].look(KEYS[effect[2]], effect)
    if type(reply) == 'table' and reply.err then
      damaged_keys[#damaged_keys + 1] = KEYS[effect[2]]
      found.damaged = true
    else
      found[#found + 1] = { effect, reply }
      found.is_replaced = found.is_replaced or type(reply) == 'table' and reply.is_replaced
    end
  end
  return found
end

-- Returns how many of the effects the state of their keys has forbidden. One that returns nothing keeps
-- those behind it from being done.
local function write(found)
  local forbidden = 0
  for _, each in ipairs(found) do
    local effect, reply = each[1], each[2]
    local is_done = effect_kinds[effect[1]].write(KEYS[effect[2]], effect, reply)
    if not is_done then forbidden = forbidden + 1 end
    if is_done == nil then break end
  end
  if found.damaged then count_end(KEYS[found.totals], 'damaged', '(feature)') end
  return forbidden
end

-- What a script returns for one job: the reply, or a list of it and of the keys that were damaged.
local function with_damaged_keys(reply)
  if #damaged_keys == 0 then return reply end
  return { reply, unpack(damaged_keys) }
end
