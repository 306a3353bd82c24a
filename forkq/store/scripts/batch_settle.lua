-- Part of batch.lua: a member has another state.

-- Whether a member may go from the state `old` to `new`. One that is done stays so. What left the dead set was
-- told when it came there, and an undo brings it back there. A batch that has told that nothing of it runs any
-- more takes back no deleted member.
function batch.may_become(found, old, new, way)
  if old == 1 or old == new then return false end
  if old == 2 then return new ~= 3 and way ~= 'restored by undo' end
  return old == 0 or new ~= 0 or not found.fired_f
end

-- The two bits that the member had, and whether it has those of `new` only now. Where it may not go, it stays.
function batch.set(place, found, member, new, way)
  local old = redis.pcall('BITFIELD', place.ends, 'SET', 'u2', '#' .. member, new)[1]
  if type(old) ~= 'number' then return nil, false end
  if old == new or batch.may_become(found, old, new, way) then return old, old ~= new end
  redis.pcall('BITFIELD', place.ends, 'SET', 'u2', '#' .. member, old)
  return old, false
end

function batch.list(place, found, member, old, new, jid)
  if found.failing > 0 and redis.pcall('HDEL', place.hash, 'failing:' .. member) == 1 then
    batch.count(place, found, 'failing', -1)
  end
  if old == 2 then redis.pcall('HDEL', place.hash, 'dead:' .. member) end
  if new == 2 and jid and found.dead <= MOST_LISTED then redis.pcall('HSET', place.hash, 'dead:' .. member, jid) end
end

-- Counts the member, which has ended otherwise by now or did so before, among those that are ignored, or no longer.
-- One that an undo has brought back, and that counts as ended all the same, is noted until its next end: so it
-- counts once less, and once more then. `now`: its bits; `new`: what they were to be.
function batch.count_ignored(place, found, member, old, new, now, way)
  if not found.ignore or found.ignore == '' then return end
  local function is_ignored(how) return found.ignore:find(',' .. how .. ',', 1, true) end
  local note, step = 'undone:' .. member, 0
  if old ~= 3 then
    step = is_ignored(way) and 1 or 0
  elseif way == 'restored by undo' and is_ignored('deleted') then
    step = (now == 0 or redis.pcall('HSET', place.hash, note, 1) == 1) and -1 or 0
  elseif new ~= 0 and redis.pcall('HDEL', place.hash, note) == 1 then
    step = now == 3 and is_ignored(way) and 1 or 0
  elseif now ~= 3 and found.ignored > 0 then
    step = -1 -- it may not have been one of them: then a success is missed, and none comes too early
  end
  if step ~= 0 then batch.count(place, found, 'ignored', step) end
end

-- A member has another state. `way`: the way that it took; `jid`: its jid. A batch has neither. Returns whether the
-- batch did not know that.
function batch.settle(chain, level, member, new, way, jid, found)
  local place = chain[level]
  found = found or batch.read(place.hash)
  if not found or found.err or member >= found.total then return end
  local old, has_changed = batch.set(place, found, member, new, way)
  local now = has_changed and new or old
  if old == 3 or now == 3 then batch.count_ignored(place, found, member, old, new, now, way) end
  if not has_changed then return end
  if old > 0 then batch.count(place, found, BATCH_ENDS[old], -1) end
  if new > 0 then batch.count(place, found, BATCH_ENDS[new], 1) end
  if way == 'no member' then redis.pcall('HINCRBY', place.hash, 'void', 1) end
  batch.list(place, found, member, old, new, jid)
  if new == 2 and not found.fired_d then
    batch.tell_death(chain, level)
    found = batch.read(place.hash)
  end
  redis.pcall('EXPIRE', place.hash, BATCH_LIVES)
  redis.pcall('EXPIRE', place.ends, BATCH_LIVES)
  if place.steps then batch.follow(place, found, member, old, new) end
  batch.look_round(chain, level, found)
  return true
end
