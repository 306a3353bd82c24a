-- Part of effects.lua: the effects on the lock of a job of which at most one waits (ticket.lua). Each has the
-- number of its first key, the job's jid, its class, milliseconds, and its queue.

--- @include "ticket"

local function job_of(effect)
  return { jid = effect[3], class = effect[4], milliseconds = effect[5], queue = effect[6] }
end

-- The job has ended. The newest one, if it waits, gets an entry of its own; unless the effect has its jid, or
-- '*': then it ends together with this job.
effect_kinds.ticket_ends = {
  look = function(lock) return ticket_of(lock) end,
  write = function(lock, effect, found)
    if found.jid ~= effect[3] then return true end
    local place, also = place_of(effect[2]), effect[7]
    if found.next and found.next ~= '' and also ~= '*' and also ~= found.next_jid then
      enter_newest(place, found, job_of(effect))
    else
      if has_result(found.next) then note_ended(place.notes, 'deleted', found.next_jid) end
      free_ticket(place)
    end
    return true
  end,
}

-- The job waits again. A newest one that waits goes before it, and the job ends.
effect_kinds.ticket_waits = {
  look = function(lock, effect)
    local found = ticket_of(lock)
    found.is_replaced = found.jid and found.jid ~= effect[3] or found.next and found.next ~= ''
    return found
  end,
  write = function(_, effect, found)
    local place, job = place_of(effect[2]), job_of(effect)
    if found.jid and found.jid ~= job.jid then return false end
    if found.is_replaced then
      enter_newest(place, found, job)
    elseif set_entry then
      take_ticket(place, job, unpack(set_entry))
    else
      take_ticket(place, job, 'queued')
    end
    return true
  end,
}

-- The newest job, which has no entry, has ended as cancelled. If it had a ticket, that is left without a job.
-- If it has an entry by now, nothing is done, and nothing behind it: the note of its cancel stays.
effect_kinds.ticket_cancelled = {
  look = function(lock) return ticket_of(lock) end,
  write = function(lock, effect, found)
    local place = place_of(effect[2])
    if found.next_jid ~= effect[3] or found.next == '' then return nil end
    redis.pcall('HDEL', lock, 'next', 'next_jid', 'next_at', 'next_queue')
    if found.state ~= 'running' then redis.pcall('HSET', lock, 'next', '') end
    redis.pcall('ZREM', place.index, lock)
    count_end(place.totals, 'cancelled', effect[4])
    return true
  end,
}

-- The job runs, and holds its lock for longer. It takes none: the job may have ended since the beat that tells
-- so has looked.
effect_kinds.ticket_runs = {
  look = function(lock) return ticket_of(lock) end,
  write = function(lock, effect, found)
    if found.jid == effect[3] then
      confirm_ticket(lock)
      hold_ticket(lock, effect[5])
    end
    return true
  end,
}
