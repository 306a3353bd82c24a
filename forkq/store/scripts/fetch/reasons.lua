-- Part of fetch.lua: tells why a queue has no more to give, and sets the marks that a child waits for.

local MARK_SECONDS = 60

local function set_mark(queue)
  local mark = KEYS[places[queue] + MARK]
  local seconds = left_to_solo(queue, 0) > 0 and TURN_SECONDS or MARK_SECONDS
  local left = call('PTTL', mark)
  if left >= 0 and left <= 1000 * seconds then return end
  call('HDEL', KEYS[2 * queue + 2], '') -- a full server takes the mark after a removal
  call('SET', mark, '', 'EX', seconds)
  if answer[2] == 0 then answer[2] = 1 end
end

local function detail_of(queue, reason)
  if reason == 'full' then set_mark(queue) end
  if reason == 'blocked' then
    set_mark(blocker[queue])
    return blocker[queue]
  end
  if reason ~= 'dry' then return 0 end
  local bucket, needed = buckets[queue], 1 + left_to_solo(queue, 0)
  return math.max(1, math.min(HUGE, math.ceil((needed - bucket.tokens) * 1e6 / bucket.per_second)))
end

local function reason_of(queue)
  room(queue, 1)
  if damaged[queue] then return 'empty' end -- finish.lua tells of all damaged queues
  local rule = rules[queue]
  local still_blocks = reasons[queue] == 'empty' and rule and #rule.blocks > 0
  return still_blocks and in_progress(queue) > 0 and 'busy' or reasons[queue]
end

local told = answer[3]
for queue = 1, queues do
  local reason = reason_of(queue)
  if reason ~= 'empty' then
    local last = #told
    told[last + 1], told[last + 2], told[last + 3] = queue, reason, detail_of(queue, reason)
  end
end
