-- Part of each script that changes a batch. A batch has two keys. `ends` has two bits for each member, by its
-- index: 0 waits, 1 is done, 2 is dead, 3 has ended otherwise. `hash` has:
--   state     'open': its block pushes members; 'broken': its block has raised; 'sealed'; 'cancelled'. The last
--             two take no member from a block any more
--   name, at, pushed_at   what it is called, when it was made, and when members came last (epoch seconds)
--   total, done, dead, other, failing, ignored   how many members there are, and how many are so. `ignored` are
--             those of `other` that keep it from no success: `ignore` has these ways, each between commas
--   calls     the letters of the callbacks that it has: 'd' death, 'f' finish, 's' success
--   on_X, fired_X, called_X   of callback X: its payload, when its time came, and how it has ended (as in `ends`)
--   to_X      the shard of callback X, if that is another one: then on_X is the note that pushes it there
--   parent, index, told   the batch that this one is a member of, its index there, and what that one was told
--   dead:I, failing:I   the jid of a member that is dead, or that has failed and is retried
--   undone:I  a member that counts as ended though an undo has brought it back, until it ends again
--   child:I   a batch that is a member
--   away      '1' if it may have members or callbacks on other shards
--   joins:T   'FIRST COUNT': places that a push to another shard has taken, under its token T, until it is known which
--             of them have members. A place without one is done, and counts among `void`, too
-- A `chain` is a batch, the one that it is a member of, and so on. Each is a `place`: the names of the keys hash
-- and ends, and of three that all have in common: schedule, index, the set of all batches by their last change, and
-- notes.

local batch = {}
local BATCH_LIVES = 180 * 86400 -- seconds from its last change on, as the dead set keeps a job
local MOST_LISTED = 1000 -- jids of members that are dead, or failing
local BATCH_NUMBERS = { 'total', 'done', 'dead', 'other', 'failing', 'ignored', 'told' }
local BATCH_NAMES = { 'state', 'total', 'done', 'dead', 'other', 'failing', 'ignored', 'told', 'ignore', 'calls', 'index',
  'fired_d', 'fired_f', 'fired_s', 'called_d', 'called_f', 'called_s' }
local BATCH_ENDS = { 'done', 'dead', 'other' }

-- The chain whose keys stand in KEYS from `first` on: of each batch two, then those that all have in common.
function batch.chain(first, depth)
  local chain = {}
  for level = 1, depth do
    chain[level] = { hash = KEYS[first + 2 * level - 2], ends = KEYS[first + 2 * level - 1],
      schedule = KEYS[first + 2 * depth], index = KEYS[first + 2 * depth + 1], notes = KEYS[first + 2 * depth + 2] }
  end
  return chain
end

-- What the hash says, by name; nothing if there is no such batch (any more); or an error reply.
function batch.read(hash)
  local values = redis.pcall('HMGET', hash, unpack(BATCH_NAMES))
  if values.err then return values end
  if not values[1] then return nil end
  local found = {}
  for i, name in ipairs(BATCH_NAMES) do found[name] = values[i] or nil end
  for _, name in ipairs(BATCH_NUMBERS) do
    found[name] = tonumber(found[name] or 0) or 0
  end
  return found
end

-- Epoch seconds, as text.
function batch.now()
  local time = redis.call('TIME')
  return string.format('%s.%06d', time[1], time[2])
end

function batch.count(place, found, name, by)
  found[name] = tonumber(redis.pcall('HINCRBY', place.hash, name, by)) or found[name]
end

function batch.is_closed(found) return found.state == 'sealed' or found.state == 'cancelled' end

-- The time of a callback has come: it is pushed, once. If Redis refuses it, a later look tries again.
function batch.fire(place, found, letter)
  if found['fired_' .. letter] then return end
  local now = batch.now()
  if found.calls and found.calls:find(letter, 1, true) then
    local payload, to = unpack(redis.pcall('HMGET', place.hash, 'on_' .. letter, 'to_' .. letter))
    local reply = to and redis.pcall('XADD', place.notes, '*', 'to', to, 'effect', payload)
      or redis.pcall('ZADD', place.schedule, now, payload)
    if type(reply) == 'table' and reply.err then return end
  end
  redis.pcall('HSET', place.hash, 'fired_' .. letter, now)
  redis.pcall('ZADD', place.index, now, place.hash)
  found['fired_' .. letter] = now
end

-- What a batch is as a member of another one: it waits until its callbacks have ended, too.
function batch.as_member(found)
  if not found.fired_f or found.done + found.dead + found.other < found.total then return 0 end
  local state = found.fired_s and 1 or found.dead > 0 and 2 or 3
  for letter in (found.calls or ''):gmatch('.') do
    local called = tonumber(found['called_' .. letter])
    if found['fired_' .. letter] and not called then return 0 end
    if called == 2 or (called == 3 and state == 1) then state = called end
  end
  return state
end

-- Pushes the callbacks whose time has come, and tells the batch above.
function batch.look_round(chain, level, found)
  local place, all = chain[level], found.total
  if found.dead > 0 then batch.fire(place, found, 'd') end -- again, if Redis has refused it
  if batch.is_closed(found) and found.done + found.dead + found.other >= all then
    batch.fire(place, found, 'f')
    if found.dead == 0 and found.done + math.max(0, found.ignored) >= all then batch.fire(place, found, 's') end
  end
  if not found.index or not chain[level + 1] then return end
  local state = batch.as_member(found)
  if state == found.told then return end
  redis.pcall('HSET', place.hash, 'told', state)
  batch.settle(chain, level + 1, tonumber(found.index), state, 'batch')
end

-- The first dead member of a batch is one of those above, too.
function batch.tell_death(chain, level)
  for above = level, #chain do
    local found = batch.read(chain[above].hash)
    if found and not found.err then batch.fire(chain[above], found, 'd') end
  end
end

--- @include "batch_settle"
