-- A step of a flow that runs adds further steps to it.
--
-- KEYS  as flow_push.lua
-- ARGV  [1] how many batches there are in the chain   [2] the index of the step that adds them   [3] how many steps
--       a flow has at most   [4] what to do: 'add', or 'look': to say whether these would be refused   then per step,
--       each behind those of this call that it comes after: its name, its payload (as job:I has it, with a placeholder
--       of its index), the shard that it goes to (as to:I has it; '': this one), how many steps are before it, and of
--       each of these its name and the letter of the edge (flow.lua)
-- Returns 1; or why nothing was added: 'double', 'unknown' or 'many', and the name of a step; or an error if the
--         flow takes no steps from this one any more.
--
-- A name that this very step has added before is that step, so a second run, or a repeated call, changes nothing.
-- The HDEL of nothing is for a full server: see retry.lua.

local INDEX = '\2'
local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "batch"
--- @include "batch_members"
--- @include "flow"

local chain = flow.chain(1, tonumber(ARGV[1]))
local place, by, most = chain[1], ARGV[2], tonumber(ARGV[3])
local total, finished = next_member(place.hash, place.ends, by)
if finished then return finished end

local indices, added = {}, {} -- by name; the new steps

local function index_of(name)
  indices[name] = indices[name] or redis.call('HGET', place.steps, 'of:' .. name) or nil
  return indices[name]
end

-- Looks at all steps. Returns why they are refused; nothing if they are not.
local function look()
  local i = 5
  while i <= #ARGV do
    local name, count = ARGV[i], tonumber(ARGV[i + 3])
    local last, index = i + 3 + 2 * count, index_of(name)
    for at = i + 4, last, 2 do
      if not index_of(ARGV[at]) then return { 'unknown', ARGV[at] } end
    end
    if not index then
      indices[name] = string.format('%d', total + #added)
      added[#added + 1] = { i, last }
    elseif redis.call('HGET', place.steps, 'from:' .. index) ~= by then
      return { 'double', name }
    end
    if total + #added > most then return { 'many', name } end
    i = last + 1
  end
end

-- Adds the step behind those before it. Returns the letter by which it is told now: 'r' starts it, 'c' cancels it;
-- nothing if it waits.
local function add(first, last)
  local name, job, to = unpack(ARGV, first, first + 2)
  local index, wait, is_cancelled = indices[name], 0, false
  for at = first + 4, last, 2 do
    local before, letter = indices[ARGV[at]], ARGV[at + 1]
    local state = redis.call('BITFIELD', place.ends, 'GET', 'u2', '#' .. before)[1]
    local nexts = redis.call('HGET', place.steps, 'next:' .. before) or ''
    redis.call('HSET', place.steps, 'next:' .. before, nexts .. index .. letter)
    is_cancelled = is_cancelled or ends_next(state, letter)
    if not lets_start(state, letter) then wait = wait + 1 end
  end
  local letter = is_cancelled and 'c' or wait == 0 and 'r' or nil
  local at = job:find(INDEX, 1, true)
  if at then job = job:sub(1, at - 1) .. index .. job:sub(at + 1) end
  redis.call('HSET', place.steps, 'of:' .. name, index, 'from:' .. index, by, 'job:' .. index, job, 'wait:' .. index,
    letter and 1 or wait)
  if to ~= '' then
    redis.call('HSET', place.steps, 'to:' .. index, to)
    redis.call('HSET', place.hash, 'away', 1)
  end
  return letter, index
end

local refused = look()
if refused or ARGV[4] == 'look' then return refused or 1 end
redis.call('HDEL', place.hash, '')
local told = { r = '', c = '' }
for _, each in ipairs(added) do
  local letter, index = add(unpack(each))
  if letter then told[letter] = told[letter] .. index .. letter end
end
if #added > 0 then add_members(place.hash, #added, batch.now()) end
local found, before = batch.read(place.hash), redis.call('HGET', place.steps, 'next:') or ''
redis.call('HSET', place.steps, 'next:', before .. told.r .. told.c)
flow.go_on(place, found, { '', 0, 1, #before + 1, #before + #told.r })
flow.go_on(place, found, { '', 0, 3, #before + #told.r + 1, #before + #told.r + #told.c })
batch.look_round(chain, 1, found)
return 1
