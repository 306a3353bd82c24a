-- Changes the state of a flow, or goes on with what a change has left.
--
-- KEYS  those of a chain (batch_change.lua), whose first batch is the flow; then its steps, and the flows that are
--       still to be told of changes
-- ARGV  [1] how many batches there are in the chain   [2] what to do: 'cancel', which ends all steps that have not
--       started, or 'look': to push the callbacks whose time has come
-- Returns the state that the flow has now, and 1 if something is left; nothing if there is no such flow, or if its
--         steps are damaged.
--
-- Each may be repeated after a lost reply. The HDEL of nothing is for a full server: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "batch"
--- @include "flow"

local chain = flow.chain(1, tonumber(ARGV[1]))
local place = chain[1]
local found = batch.read(place.hash)
local kind = redis.call('TYPE', place.steps).ok
if not found or found.err or kind ~= 'hash' then -- it is gone, or damaged
  redis.call('SREM', place.unfinished, place.hash)
  return {}
end
redis.call('HDEL', place.hash, '')
local all
if ARGV[2] == 'cancel' and found.state ~= 'cancelled' then
  found.state = 'cancelled'
  redis.call('HSET', place.hash, 'state', found.state)
  all = { '*', 0, 3, 0, found.total - 1 }
end
flow.go_on(place, found, all)
batch.look_round(chain, 1, found)
return { found.state, redis.call('HEXISTS', place.steps, 'todo') }
