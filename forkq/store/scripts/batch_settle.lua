-- Part of batch.lua: a member has another state.

-- Whether a member may go from the state `old` to `new`. One that is done stays so. What left the dead set was
-- told when it came there, and an undo brings it back there. A batch that has told that nothing of it runs any
-- more takes back no deleted member.
function batch.may_become(found, old, new, way)
  if old == 1 or old == new then return false end
  if old == 2 then return new ~= 3 and way ~= 'restored by undo' end
  return old == 0 or new ~= 0 or not found.fired_f
end

-- The two bits that the member had, and gets. Where it may not go, it stays: then nothing, and those bits.
function batch.set(place, found, member, new, way)
  local old = redis.pcall('BITFIELD', place.ends, 'SET', 'u2', '#' .. member, new)[1]
  if type(old) ~= 'number' or old == new then return nil end
  if batch.may_become(found, old, new, way) then return old end
  redis.pcall('BITFIELD', place.ends, 'SET', 'u2', '#' .. member, old)
  return nil, old
end

function batch.list(place, found, member, old, new, jid)
  if found.failing > 0 and redis.pcall('HDEL', place.hash, 'failing:' .. member) == 1 then
    batch.count(place, found, 'failing', -1)
  end
  if old == 2 then redis.pcall('HDEL', place.hash, 'dead:' .. member) end
  if new == 2 and jid and found.dead <= MOST_LISTED then redis.pcall('HSET', place.hash, 'dead:' .. member, jid) end
end

function batch.count_ignored(place, found, old, new, way)
  if not found.ignore or found.ignore == '' then return end
  local function is_ignored(how) return found.ignore:find(',' .. how .. ',', 1, true) end
  if new == 3 and is_ignored(way) then batch.count(place, found, 'ignored', 1) end
  if old == 3 and way == 'restored by undo' and is_ignored('deleted') then batch.count(place, found, 'ignored', -1) end
end

-- A member has another state. `way`: the way that it took; `jid`: its jid. A batch has neither.
function batch.settle(chain, level, member, new, way, jid, found)
  local place = chain[level]
  found = found or batch.read(place.hash)
  if not found or found.err or member >= found.total then return end
  local old, stays = batch.set(place, found, member, new, way)
  -- It counts as ended, but not as deleted any more: or it would be ignored, and done as well.
  if stays then batch.count_ignored(place, found, stays, stays, way) end
  if not old then return end
  if old > 0 then batch.count(place, found, BATCH_ENDS[old], -1) end
  if new > 0 then batch.count(place, found, BATCH_ENDS[new], 1) end
  batch.count_ignored(place, found, old, new, way)
  batch.list(place, found, member, old, new, jid)
  if new == 2 and not found.fired_d then
    batch.tell_death(chain, level)
    found = batch.read(place.hash)
  end
  redis.pcall('EXPIRE', place.hash, BATCH_LIVES)
  redis.pcall('EXPIRE', place.ends, BATCH_LIVES)
  batch.look_round(chain, level, found)
end
