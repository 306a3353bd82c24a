-- Part of each script that pushes jobs, or ends them: the results of jobs (features/results/parts.py).

--- @include "needs"

-- Whether the result of the job in this payload is kept. In another place of the payload the same text only
-- makes the leader look for a result that is not there.
local function has_result(payload)
  local needs = payload and needs_in(payload)
  return needs and needs:find('"result_ttl":', 1, true)
end

-- Notes that a job has ended whose result has a key that this script was not told: the leader writes it.
local function note_ended(notes, outcome, jid)
  redis.pcall('RPUSH', notes, outcome .. ' ' .. jid)
end
