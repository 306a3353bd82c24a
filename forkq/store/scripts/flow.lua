-- Part of each script that changes a flow: a batch (batch.lua) whose members, its steps, are known before the first
-- one starts. `steps` is its third key, a hash. It has of the step with the index I:
--   wait:I   how many of the steps before it keep it from starting; gone once it has started, or was cancelled
--   job:I    until then: its payload, behind the seconds after which it expires, if it does
--   to:I     until then: the shard that it goes to, if that is another one: then job:I is the note that pushes it there
--   next:I   the steps behind it, each by its index and a letter that says what a bad end of this one means: 'w' that
--            one waits, 'c' it is cancelled, 'r' it runs all the same. `next:` has those that nothing is before
--   end:I    how it has ended, and what it has returned (features/results/parts.py)
--   of:NAME  the index of the step of that name
--   from:I   the index of the step that has added it, if one has (flow_graft.lua)
--   todo     the steps that have changed, and whose next ones do not all know that: of each its index, the states that
--            it had and has, and from where to where in next:I those ones stand; with spaces between, and a comma
--            behind the last one. '*' in the place of an index: all steps are cancelled, from one index to another
-- `unfinished` has the flows that have a `todo`: the clock goes on with it.

local flow = {}
local MOST_TOLD = 500 -- of the next steps, by one call of a script

-- Whether a step that is in this state lets the one behind it start.
local function lets_start(state, letter) return state == 1 or state > 1 and letter == 'r' end

-- Whether it ends the one behind it: also one that waits, if this one cannot be retried any more (3).
local function ends_next(state, letter) return state > 1 and letter == 'c' or state == 3 and letter == 'w' end

local function is_refused(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end

-- The chain of a flow, which is a batch: behind its keys are those of the steps and of the unfinished flows.
function flow.chain(first, depth)
  local chain = batch.chain(first, depth)
  chain[1].steps, chain[1].unfinished = KEYS[first + 2 * depth + 3], KEYS[first + 2 * depth + 4]
  return chain
end

local function stamped(job, now)
  local seconds, payload = job:match('^([%d.]*)(.*)$')
  if seconds == '' then return payload end
  return (payload:gsub('\1', string.format('%.6f', now + seconds)))
end

-- The fields of these kinds of the steps with these indices: all of one kind, then all of the next.
local function fields_of(kinds, indices)
  local fields = {}
  for _, kind in ipairs(kinds) do
    for _, index in ipairs(indices) do fields[#fields + 1] = kind .. index end
  end
  return fields
end

local function forget_jobs(steps, indices)
  redis.pcall('HDEL', steps, unpack(fields_of({ 'job:', 'wait:', 'to:' }, indices)))
end

-- What these steps are from now on: entries of the schedule, and notes for other shards.
local function started(place, indices)
  local now, entries, notes = batch.now(), {}, {}
  local found = redis.call('HMGET', place.steps, unpack(fields_of({ 'job:', 'to:' }, indices)))
  for i = 1, #indices do
    local job, to = found[i], found[#indices + i]
    if job and to then
      notes[#notes + 1] = { to, stamped(job, now) }
    elseif job then
      entries[#entries + 1] = now
      entries[#entries + 1] = stamped(job, now)
    end
  end
  return entries, notes
end

-- Gives these steps to the schedule, due at once, or notes them for other shards. Returns false, and changes nothing,
-- if Redis refuses that.
local function start(place, indices)
  if #indices == 0 then return true end
  local entries, notes = started(place, indices)
  if is_refused('ZCARD', place.schedule) then return false end
  for _, note in ipairs(notes) do -- a type or a right that is wrong refuses the first one
    if is_refused('XADD', place.notes, '*', 'to', note[1], 'effect', note[2]) then return false end
  end
  if #entries > 0 and is_refused('ZADD', place.schedule, unpack(entries)) then return false end
  forget_jobs(place.steps, indices)
  return true
end

-- How long the list of the steps behind this one is.
local function length_of(place, index) return #(redis.call('HGET', place.steps, 'next:' .. index) or '') end

-- Ends these steps, which have not started, as cancelled. Those behind them are to be told of that; not without a
-- `todo`: then all steps are cancelled, and these, too.
local function cancel(place, found, indices, todo)
  if #indices == 0 then return end
  for _, index in ipairs(indices) do
    redis.pcall('BITFIELD', place.ends, 'SET', 'u2', '#' .. index, 3)
    batch.count(place, found, 'other', 1)
    batch.count_ignored(place, found, index, 0, 3, 3, 'cancelled')
    local last = todo and length_of(place, index) or 0
    if last > 0 then todo[#todo + 1] = { index, 0, 3, 1, last } end
  end
  redis.pcall('EXPIRE', place.ends, BATCH_LIVES)
  forget_jobs(place.steps, indices)
end

--- @include "flow_tell"
