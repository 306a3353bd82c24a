-- Part of effects.lua: what must happen on another shard, which no script here can reach (features/notes.py).

-- Notes it: the effect has the name of that shard ('': this one), and the effect that is to be done there.
effect_kinds.note = {
  look = function(notes) return redis.pcall('XLEN', notes) end,
  write = function(notes, effect)
    redis.pcall('XADD', notes, '*', 'to', effect[3], 'effect', effect[4])
    return true
  end,
}
