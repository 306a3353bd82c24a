-- Part of batch_change.lua and flow_push.lua: makes a batch.

--- @include "batch_members"

-- Makes it with these fields, each with its value, as a member of the batch `above`, if there is one. `via`: the index
-- of the member of that one that makes it; '': its block does. Returns an error if that one takes no members.
local function open_batch(place, above, via, fields)
  local now = batch.now()
  local parent, index, finished = above and above.hash, nil, nil
  if above then
    index, finished = next_member(parent, above.ends, via)
    if finished then return finished end
  end
  redis.call('HSET', place.hash, 'state', 'open', 'at', now, 'pushed_at', now, unpack(fields))
  redis.call('EXPIRE', place.hash, BATCH_LIVES)
  redis.call('ZREMRANGEBYSCORE', place.index, '-inf', '(' .. (now - BATCH_LIVES))
  redis.call('ZADD', place.index, now, place.hash)
  if index then
    redis.call('HSET', place.hash, 'index', index)
    add_members(parent, 1, now)
    redis.call('HSET', parent, 'child:' .. index, place.hash)
  end
end
