-- Part of effects.lua: what all effects on a batch need.

local BATCH_LIVES = 180 * 86400 -- seconds from its last change on, as the dead set keeps a job

-- An error reply if either key of a batch holds another type.
local function refusal_of_batch(reply, ends)
  if type(reply) == 'table' and reply.err then return reply end
  local kind = redis.pcall('TYPE', ends).ok
  if kind ~= 'string' and kind ~= 'none' then return { err = 'WRONGTYPE' } end
  return nil
end
