-- Says what becomes of a leased job of which at most one waits ("replace", "latest"), before it is run.
--
-- KEYS  [1] in-flight hash of its queue   [2] its lock, and the keys that follow that (features/unique/tickets.py)
-- ARGV  [1] lease   [2] its jid   [3] its class   [4] for how many milliseconds it has the lock
--       [5] its queue   [6] 1 if it holds the lock while it runs
-- Returns 'run'; 'newer': the lease has the payload of the newest job now, which is to be run in its place;
--         'over': it is a ticket that no job runs here by, and its end passes on what waits behind it;
--         'replaced': another job was pushed in its place; 'gone': the lease is gone.
--
-- After a lost reply a repeated call says 'run' of the job that the lease has by then. The HDEL of nothing is
-- for a full server: see retry.lua.

local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "ticket"

local lease, queue, holds = ARGV[1], ARGV[5], ARGV[6]
local job = { jid = ARGV[2], class = ARGV[3], milliseconds = ARGV[4], queue = queue }
local place = place_of(2)

local function is_runnable(found)
  local at = tonumber(found.next_at)
  return found.next ~= '' and found.next_queue == queue and (not at or 1000 * at <= now_in_ms())
end

local function start(found)
  if found.err then
    return 'run', count_end(place.totals, 'damaged', '(feature)')
  end
  if (found.jid or job.jid) ~= job.jid then return 'replaced' end
  if found.state == 'running' then return 'run' end
  if found.next and not is_runnable(found) then return 'over' end
  if found.next then
    redis.call('HSET', KEYS[1], lease, found.next)
    job.jid = found.next_jid
  end
  if holds == '1' then take_ticket(place, job, 'running') else free_ticket(place) end
  return found.next and 'newer' or 'run'
end

if redis.call('HEXISTS', KEYS[1], lease) == 0 then return 'gone' end
redis.call('HDEL', KEYS[1], '')
return start(ticket_of(place.lock))
