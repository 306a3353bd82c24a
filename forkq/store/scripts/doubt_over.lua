-- Frees a lock whose job is gone, and pushes the job that has met it.
--
-- KEYS  those of push.lua for one unique job; without a job to push: its first four, the locks with a newest
--       job, the lock, and the pushes that have met a doubted lock
-- ARGV  those of push.lua   then: the jid that has the lock, its `sure` when the search began, and the note
--       of the push
-- Returns what push.lua does. Nothing, and changes nothing, if the note or the lock has changed since: a
-- newer push has met the lock, or its job has confirmed it.

local unpack = table.unpack or unpack -- Lua 5.4 has the former
local lock, notes = KEYS[#KEYS - 1], KEYS[#KEYS]
local note, sure, jid = table.remove(ARGV), table.remove(ARGV), table.remove(ARGV)
local digest = lock:match('[^:]*$')

if redis.call('HGET', notes, digest) ~= note then return nil end
local has = redis.call('HMGET', lock, 'jid', 'sure')
if has[1] ~= jid or (has[2] or '') ~= sure then return nil end
redis.call('HDEL', notes, digest)

--- @include "free_lock"

if free_lock(lock, KEYS[5], KEYS[2]) then return { 1, 1 } end

--- @include "push"
