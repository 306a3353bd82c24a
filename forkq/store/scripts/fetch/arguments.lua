-- Part of fetch.lua: its arguments, and what all other parts use.
--
-- KEYS[2 * queue + 1] is the list of a queue, KEYS[2 * queue + 2] its in-flight hash. After those of all
-- queues come the marks of the queues to acknowledge in, then the keys of the queues with rules.

local call, pcall, tonumber, KEYS, ARGV = redis.call, redis.pcall, tonumber, KEYS, ARGV
local unpack = table.unpack or unpack -- Lua 5.4 has the former

local want, owner, sequence = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local seed, queues, free = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
-- By queue with rules: where its keys begin in KEYS. They come in this order.
local places
local MARK, CONTROL, BUCKET, TURN, SUSPECTS, PER_RULE = 0, 1, 2, 3, 4, 5
local position = 8 -- of the last element of ARGV that was read

local removed -- in turn: a queue, and how many leases; nil if there are none to acknowledge
local added = {} -- how many leases, by queue
local damaged = {} -- by queue: 1 if its list is damaged, 2 if its in-flight hash is
local damaged_keys = {}
local answer = { 0, 0, {}, damaged_keys }

-- Called with an error reply. Remembers a damaged key; raises any other refusal, by sending the
-- command once more.
local function check_damage(reply, command, key, ...)
  if not reply.err:find('WRONGTYPE', 1, true) then call(command, key, ...) end
  for _, known in ipairs(damaged_keys) do
    if known == key then return end
  end
  damaged_keys[#damaged_keys + 1] = key
end
