-- Part of each script that brings a job to a queue from elsewhere: notes the queues with marked jobs.

--- @include "needs"

-- In another place of the payload the same text only makes the leader look into the queue once more.
local function note_if_marked(index, queue, payload)
  local needs = needs_in(payload)
  if needs then redis.pcall('ZADD', index, 'LT', expiry_in(needs) or '+inf', queue) end
end
