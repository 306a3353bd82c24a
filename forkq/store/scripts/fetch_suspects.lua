-- The fetch of a solo child: as fetch.lua, from the lists of suspects.
--
-- KEYS  as fetch.lua, with the list of suspects in the place of each queue's list; then [last] the set
--       of the queues that have suspects
-- ARGV  as fetch.lua   Returns the same.
--
-- A queue that gave its last suspect leaves the set. A child that a limit or a rate refuses a suspect
-- notes that in the hash `turn` of the queue: ordinary children then leave it a permit and a token,
-- else an endless backlog would take each one first. Once it has a job, its notes go.

--- @include "fetch/main"

local index = KEYS[#KEYS]

local function name_of(queue) return KEYS[2 * queue + 2]:match('{queue:(.*)}:inflight$') end

local function drop_notes()
  for _, place in pairs(places or {}) do
    local removed = pcall('HDEL', KEYS[place + TURN], owner)
    if removed == 1 then call('DEL', KEYS[place + MARK]) end
  end
end

if answer[5] then drop_notes() end
for i = 5, #answer, 2 do
  local queue = answer[i]
  if call('EXISTS', KEYS[2 * queue + 1]) == 0 then pcall('SREM', index, name_of(queue)) end
end

local reasons = answer[3]
for i = 1, #reasons, 3 do
  local queue, reason = reasons[i], reasons[i + 1]
  local is_refused = reason == 'full' or reason == 'dry'
  if is_refused and call('EXISTS', KEYS[2 * queue + 1]) == 1 then
    local turn = KEYS[places[queue] + TURN]
    pcall('HDEL', turn, '') -- a full server takes the note after a removal
    pcall('HSET', turn, owner, call('TIME')[1])
    pcall('EXPIRE', turn, 60)
  end
end
return answer
