-- Part of each script that brings a job to a queue from elsewhere: notes the queues with marked jobs.

-- In another place of the payload the same text only makes the leader look into the queue once more.
local function note_if_marked(index, queue, payload)
  local tail = payload:sub(-8192)
  if not tail:find('"needs":{', 1, true) then return end
  redis.pcall('ZADD', index, 'LT', tail:match('"expires_at":(%d+%.?%d*)') or '+inf', queue)
end
