-- Part of each script by which a job that runs gains what its end must know: the payload of its lease says so
-- from then on.
--
-- The lease that has other bytes than `before` by now has a mark of the master, which removes this child
-- (mark_failed.lua): it stays.

--- @include "marked"

local function gain(inflight, lease, queue, payload, before, index)
  if payload == '' or #redis.call('HGET', inflight, lease) ~= tonumber(before) then return end
  redis.call('HSET', inflight, lease, payload)
  note_if_marked(index, queue, payload)
end
