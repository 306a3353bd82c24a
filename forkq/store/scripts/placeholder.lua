-- Part of each script that pushes jobs: the results of jobs (features/results/parts.py).

-- Writes the placeholder of a job that was pushed: after `milliseconds` from the moment on at which the job is
-- due, it is gone. A key that holds another type is left as it is.
local function await_result(key, placeholder, milliseconds, totals)
  local reply = redis.pcall('SET', key, placeholder, 'PX', string.format('%.0f', milliseconds), 'GET')
  if type(reply) == 'table' and reply.err then count_end(totals, 'damaged', '(feature)') end
end
