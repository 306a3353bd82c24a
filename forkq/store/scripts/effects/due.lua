-- Part of effects.lua: a job that was made beforehand, and whose time has come.

local DUE_IS_KNOWN = 30 * 86400 -- seconds: so late a repeated note would push the job a second time

-- Puts the job into the schedule, from which the clock takes it at once. The key behind the schedule's says that
-- this was done: the note of it may come twice. The effect has the payload.
effect_kinds.due = {
  look = function(schedule) return redis.pcall('ZCARD', schedule) end,
  write = function(schedule, effect)
    if not redis.pcall('SET', KEYS[effect[2] + 1], '', 'NX', 'EX', DUE_IS_KNOWN) then return true end
    redis.pcall('ZADD', schedule, redis.call('TIME')[1], effect[3])
    return true
  end,
}
