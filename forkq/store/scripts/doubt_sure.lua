-- Notes that the jobs which have these locks are there, and forgets the pushes that doubted it.
--
-- KEYS  [1] the pushes that have met a doubted lock   [2 ..] the locks
-- ARGV  [1] for how many milliseconds nothing doubts them   then per lock: the jid that has it ('' only
--       forgets)
-- Returns how many locks those jobs still had.

--- @include "now"
--- @include "lock"

local sure, found = string.format('%.0f', now_in_ms() + ARGV[1]), 0
for i = 2, #KEYS do
  redis.call('HDEL', KEYS[1], KEYS[i]:match('[^:]*$'))
  if ARGV[i] ~= '' and holder_of(KEYS[i]) == ARGV[i] then
    redis.pcall('HSET', KEYS[i], 'sure', sure)
    found = found + 1
  end
end
return found
