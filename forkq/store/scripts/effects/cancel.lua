-- Part of effects.lua: a cancelled job has ended. Its note goes, and it is remembered for a day.

-- Removes the note of a job: the effect has its jid.
effect_kinds.uncancel = {
  look = function(notes) return redis.pcall('HLEN', notes) end,
  write = function(notes, effect)
    redis.pcall('HDEL', notes, 'jid:' .. effect[3])
    return true
  end,
}

-- Adds the jid to the jobs that have ended so.
effect_kinds.remember = {
  look = function(lately) return redis.pcall('ZCARD', lately) end,
  write = function(lately, effect)
    redis.pcall('ZADD', lately, redis.call('TIME')[1], effect[3])
    return true
  end,
}
