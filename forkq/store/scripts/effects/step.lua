-- Part of effects.lua: the effects on the steps of a job that sleeps, or waits for a signal.

--- @include "signal"

-- The job sleeps: the effect has the name of the step, what is remembered of it, and for how many seconds.
effect_kinds.asleep = {
  look = function(steps) return redis.pcall('HLEN', steps) end,
  write = function(steps, effect, _, found)
    if found.is_replaced then return true end -- it does not go on
    redis.pcall('HSET', steps, effect[3], effect[4])
    redis.pcall('EXPIRE', steps, effect[5])
    return true
  end,
}

-- The job waits for an event: the effect has what `asleep` has, then its jid, since when and until when it waits,
-- and for how many seconds the event is kept. Behind the event stand its steps and the schedule. If the signal has
-- come between the run and this, the job is due now.
effect_kinds.wait = {
  look = function(event) return redis.pcall('HGET', event, '') end,
  write = function(event, effect, raw, found)
    if found.is_replaced then return true end
    local steps, schedule, signal = KEYS[effect[2] + 1], KEYS[effect[2] + 2], signal_in(raw)
    local name, jid, since, till = effect[3], effect[6], effect[7], effect[8]
    local is_over = is_for(signal, since, till)
    redis.pcall('HSET', steps, name, is_over and signal.text or effect[4])
    redis.pcall('EXPIRE', steps, effect[5])
    if is_over then
      redis.pcall('ZADD', schedule, now_in_seconds(), set_entry[2])
      note_taken(event, signal, jid)
    else
      redis.pcall('HSET', event, jid, since .. ' ' .. till .. ' ' .. #name .. " " .. name .. set_entry[2])
      keep(event, tonumber(effect[9]))
    end
    return true
  end,
}

-- The job with the jid that the effect has waits no more.
effect_kinds.unwait = {
  look = function(event) return redis.pcall('HLEN', event) end,
  write = function(event, effect)
    redis.pcall('HDEL', event, effect[3])
    return true
  end,
}
