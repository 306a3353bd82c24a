-- Part of push.lua: jobs that become members of a batch. Its keys are the two of that. Its argument: the
-- index of the member that pushes them ('': the batch's block does).
--
-- A placeholder in their payloads, a byte that no JSON text has, gives way to the index that the job has in it.

--- @include "batch_members"

local INDEX = '\2'
local hash, index, finished

parts.b = {
  begin = function(i, before)
    hash = KEYS[before + 1]
    index, finished = next_member(hash, KEYS[before + 2], ARGV[i])
    return i + 1, before + 2
  end,
  look = function() return finished end,
  take = function(_, payload)
    local at = payload:find(INDEX, 1, true)
    local taken = at and payload:sub(1, at - 1) .. index .. payload:sub(at + 1)
    index = index + 1
    return taken
  end,
  write = function(count) add_members(hash, count, math.floor(now_in_ms() / 1000)) end,
}
