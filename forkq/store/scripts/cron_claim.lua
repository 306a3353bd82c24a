-- Claims the right to publish the periodic jobs of a service. The newest child of a service has it.
--
-- KEYS  [1] the claim: generation, when that began, the child's number in it, when it was renewed
-- ARGV  [1] the child's generation   [2] the age of that, milliseconds   [3] the child's number in it
--       [4] a claim that its owner no longer renews; '' if there is none   [5] seconds it is kept
-- Returns nothing if this child has the right now, else the claim of the newer child.
--
-- The server's clock turns the age into a time, so that hosts with different clocks agree. Each
-- renewal changes the claim. The first write is a removal, for a full server: see retry.lua.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local begun = now - ARGV[2]

local function is_newer(claim)
  local generation, since, number = claim:match('^(%S+) (%d+) (%d+) %d+$')
  if generation == ARGV[1] then return tonumber(number) > tonumber(ARGV[3]) end
  return generation and tonumber(since) > begun
end

local claim = redis.pcall('GET', KEYS[1]) -- an error if the key holds another type
if type(claim) == 'string' and claim ~= ARGV[4] and is_newer(claim) then return claim end
redis.call('DEL', KEYS[1])
claim = string.format('%s %.0f %s %.0f', ARGV[1], begun, ARGV[3], now)
redis.call('SET', KEYS[1], claim, 'EX', ARGV[5])
return false
