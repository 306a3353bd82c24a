-- Makes a flow, or a further part of one: with the last part its first steps start.
--
-- KEYS  those of a chain (batch_change.lua), whose first batch is the flow; then its steps, and the flows that are
--       still to be told of changes
-- ARGV  [1] how many batches there are in the chain   [2] the index of the member that makes it, in the batch above
--       ('': the block of that one does)   [3] how many steps the flow has; '' if more parts follow
--       [4] the steps that nothing is before, as in `next:` (flow.lua)   [5] how many of the following are fields of
--       the hash, and their values   then these; then per step: its index, its name, its payload (as job:I has it),
--       the shard that it goes to (as to:I has it; '': this one), how many steps are before it, and the steps behind
--       it (as next:I has them)
-- Returns the state that the flow has now; an error if the batch above takes no members.
--
-- Each part may be sent again: none changes a flow whose last part has come. The HDEL of nothing is for a full
-- server: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "batch"
--- @include "batch_open"
--- @include "flow"

local chain = flow.chain(1, tonumber(ARGV[1]))
local place, total = chain[1], ARGV[3]

local function add_step(index, name, job, to, wait, nexts)
  redis.call('HSET', place.steps, 'of:' .. name, index, 'job:' .. index, job, 'wait:' .. index, wait)
  if to ~= '' then redis.call('HSET', place.steps, 'to:' .. index, to) end
  if nexts ~= '' then redis.call('HSET', place.steps, 'next:' .. index, nexts) end
end

local function seal()
  redis.call('HSET', place.hash, 'state', 'sealed', 'total', total)
  redis.call('HSET', place.steps, 'next:', ARGV[4])
  local found = batch.read(place.hash)
  flow.go_on(place, found, { '', 0, 1, 1, #ARGV[4] })
  batch.look_round(chain, 1, found)
  return found.state
end

local found = batch.read(place.hash)
if found and (found.err or found.state ~= 'open') then return found.err and found or found.state end
redis.call('HDEL', place.hash, '')
local first = 6 + ARGV[5]
local refusal = not found and open_batch(place, chain[2], ARGV[2], { unpack(ARGV, 6, first - 1) })
if refusal then return refusal end
for i = first, #ARGV, 6 do add_step(unpack(ARGV, i, i + 5)) end
redis.call('EXPIRE', place.steps, BATCH_LIVES)
return total == '' and 'open' or seal()
