-- Part of effects.lua: the effect on the result of a job.

-- Writes the result, or the placeholder of a job that goes on: the effect has the text, and for how many
-- milliseconds it lives. Two more arguments are the same for the case that a newer job has taken the place of
-- this one, which does not go on then. The write looks by itself: with GET it leaves another type as it is.
effect_kinds.result = {
  look = function() end,
  write = function(key, effect, _, found)
    local text, milliseconds = effect[3], effect[4]
    if found.is_replaced and effect[5] then text, milliseconds = effect[5], effect[6] end
    local reply = redis.pcall('SET', key, text, 'PX', string.format('%.0f', milliseconds), 'GET')
    if type(reply) == 'table' and reply.err then note_damage(found, key) end
    return true
  end,
}
