-- Makes a batch, or changes its state.
--
-- KEYS  those of a chain: the hash and the ends of the batch, of the one that it is a member of, and so on; the
--       schedule; the set of all batches; the notes
-- ARGV  [1] how many batches there are in the chain   [2] what to do: 'open', 'break', 'seal', 'cancel', or
--       'look': to push the callbacks whose time has come
--       for 'open': [3] the index of the member that makes it, in the batch above ('': the block of that one
--       does)   then the fields of the hash, each with its value
--       'join': to take places for members that will be pushed to other shards: [3] as for 'open', of this batch
--       [4] how many [5] a token;   'joined': that push is over: [3] the token, then the indices of those that were
--       not pushed
-- Returns the state that it has now; '' if there is no such batch; an error if a batch takes no members. For 'join'
-- the index of the first place.
--
-- Each may be repeated after a lost reply. The HDEL of nothing is for a full server: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "batch"
--- @include "batch_open"

local chain = batch.chain(1, tonumber(ARGV[1]))
local place, what = chain[1], ARGV[2]

-- A repeated call finds the places that it has taken.
local function join(hash, ends, via, count, token)
  local known = redis.call('HGET', hash, 'joins:' .. token)
  if known then return tonumber(known:match('%d+')) end
  local first, finished = next_member(hash, ends, via)
  if finished then return finished end
  redis.call('HSET', hash, 'joins:' .. token, first .. ' ' .. count, 'away', 1)
  add_members(hash, count, batch.now())
  return first
end

local function end_join(token)
  if redis.call('HDEL', place.hash, 'joins:' .. token) == 0 then return end
  for i = 4, #ARGV do batch.settle(chain, 1, tonumber(ARGV[i]), 1, 'no member') end
end

local AFTER = {
  ['break'] = { open = 'broken' },
  seal = { open = 'sealed', broken = 'sealed' },
  cancel = { open = 'cancelled', broken = 'cancelled', sealed = 'cancelled' },
  look = {},
}

local found = batch.read(place.hash)
if found and found.err then return found end
if what == 'open' then
  return found and found.state or open_batch(place, chain[2], ARGV[3], { unpack(ARGV, 4) }) or 'open'
end
if what == 'join' then return join(place.hash, place.ends, ARGV[3], tonumber(ARGV[4]), ARGV[5]) end
if not found then return '' end
if what == 'joined' then
  end_join(ARGV[3])
  return found.state
end
redis.call('HDEL', place.hash, '')
found.state = AFTER[what][found.state] or found.state
redis.call('HSET', place.hash, 'state', found.state)
batch.look_round(chain, 1, found)
return found.state
