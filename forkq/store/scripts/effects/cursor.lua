-- Part of effects.lua: the effects on the cursor of an iterable job.

-- Deletes it.
effect_kinds.forget = {
  look = function(cursor) return redis.pcall('HLEN', cursor) end,
  write = function(cursor)
    redis.pcall('DEL', cursor)
    return true
  end,
}

-- Keeps it for the seconds that the effect has, from now on.
effect_kinds.keep = {
  look = function(cursor) return redis.pcall('HLEN', cursor) end,
  write = function(cursor, effect)
    redis.pcall('EXPIRE', cursor, effect[3])
    return true
  end,
}
