-- Part of each script that ends a job or lets it go on: what the job's features ask together with that.
--
-- The script gets the effects of a job as JSON: the number of the key that counts how jobs have ended, then
-- of each effect its name, the number of its key, and its arguments. Nothing, or '', are none.
-- `look_at` reads what they need, before the job's first write. `write` changes it; it cannot fail, and may
-- run twice. The key of a feature that holds another type is left as it is: the job ends all the same.

--- @include "ended"

local effect_kinds, damaged_keys = {}, {}
local set_entry -- the script sets it: of a job that goes to a set, its state there, and the member

local function state_in(set) return set:find('schedule$') and 'scheduled' or 'retrying' end

local function note_damage(found, key) damaged_keys[#damaged_keys + 1], found.damaged = key, true end

--- @include "effects/batch_keys"

-- A part is defined once the first effect of its kind comes: each call of a script defines anew what it has, and
-- to define all parts takes longer than to end a job.
local define, kind_of = {}, nil

function define.lock()
--- @include "effects/lock"
end

function define.cancel()
--- @include "effects/cancel"
end

function define.ticket()
--- @include "effects/ticket"
end

function define.debounce()
--- @include "effects/debounce"
end

function define.cursor()
--- @include "effects/cursor"
end

function define.step()
--- @include "effects/step"
end

function define.member()
--- @include "effects/member"
end

function define.batch()
--- @include "effects/batch"
end

function define.result()
--- @include "effects/result"
end

function define.note()
--- @include "effects/note"
end

function define.due()
--- @include "effects/due"
end

local PARTS = { unlock = 'lock', lock = 'lock', hold = 'lock', leased = 'lock', uncancel = 'cancel', remember = 'cancel',
  forget = 'cursor', keep = 'cursor', asleep = 'step', wait = 'step', unwait = 'step', batch = 'member',
  flow = 'batch' }

kind_of = function(name)
  if not effect_kinds[name] then define[PARTS[name] or name:match('^%l+')]() end
  return effect_kinds[name]
end

-- `fixed`: in a call about several jobs, how many keys they share; `before`: how many keys of other jobs stand
-- between these and the keys of this one.
local function look_at(text, fixed, before)
  if not text or text == '' then return {} end
  local effects = cjson.decode(text)
  local found = { totals = effects[1] }
  for i = 2, #effects do
    local effect = effects[i]
    if before and effect[2] > fixed then effect[2] = effect[2] + before end
    local reply = kind_of(effect[1]).look(KEYS[effect[2]], effect)
    if type(reply) == 'table' and reply.err then
      note_damage(found, KEYS[effect[2]])
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
    local is_done = effect_kinds[effect[1]].write(KEYS[effect[2]], effect, reply, found)
    if not is_done then forbidden = forbidden + 1 end
    if is_done == nil then break end
  end
  if found.damaged then count_end(KEYS[found.totals], 'damaged', '(feature)') end
  return forbidden
end

-- What a script returns for one job: the reply, or a list of it and of the keys that were damaged.
local function with_damaged_keys(reply)
  if #damaged_keys == 0 then return reply end
  local keys = damaged_keys
  damaged_keys = {}
  return { reply, unpack(keys) }
end
