-- Part of effects.lua: the effects on the lock of a unique job.

--- @include "now"
--- @include "lock"

-- Frees the lock if this job has it: the effect has its jid.
effect_kinds.unlock = {
  look = function(lock) return holder_of(lock) end,
  write = function(lock, effect, holder)
    if holder == effect[3] then redis.pcall('DEL', lock) end
    return true
  end,
}

-- What stands behind it is done only if the lease is there: a start that arrives late must not take a lock for a job
-- that has ended. The effect has the lease.
effect_kinds.leased = {
  look = function(inflight, effect) return redis.pcall('HEXISTS', inflight, effect[3]) end,
  write = function(_, _, is_leased) return is_leased == 1 or nil end,
}

-- Takes the lock if it is free, or holds it for longer: the effect has jid, class, and milliseconds.
effect_kinds.lock = {
  look = function(lock) return holder_of(lock) end,
  write = function(lock, effect, holder)
    if holder ~= '' and holder ~= effect[3] then return false end
    take_lock(lock, effect[3], effect[4], in_text(effect[5]), holder == '')
    return true
  end,
}

-- Holds the lock for longer if this job has it: the effect has jid, class, and milliseconds. It takes none: the
-- job may have ended since the beat that tells that it runs has looked.
effect_kinds.hold = {
  look = function(lock) return holder_of(lock) end,
  write = function(lock, effect, holder)
    if holder == effect[3] then take_lock(lock, effect[3], effect[4], in_text(effect[5]), false) end
    return true
  end,
}
