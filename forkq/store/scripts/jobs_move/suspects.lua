-- Part of jobs_move.lua and jobs_restore.lua: the list of a queue's suspects, and the index of the
-- queues that have one.

local function is_refused(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end

-- Adds with `push` (LPUSH or RPUSH). Returns whether the job is there: nothing is added where the list
-- or the index is damaged.
local function add_suspect(push, list, index, queue, payload)
  if is_refused(push, list, payload) then return false end
  if not is_refused('SADD', index, queue) then return true end
  redis.call(push == 'LPUSH' and 'LPOP' or 'RPOP', list)
  return false
end

local function drop_name_if_empty(list, index, queue)
  if redis.call('EXISTS', list) == 0 then redis.pcall('SREM', index, queue) end
end
