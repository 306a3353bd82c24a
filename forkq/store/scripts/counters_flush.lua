-- Adds what a child counted since its last flush. Sent twice, it adds nothing the second time.
--
-- KEYS  [1] the record of what that child flushed   [2 ..] counters   then, if there are fields, the
--       hash of this minute and that of these ten minutes   then histograms
-- ARGV  [1] the flush's number   [2] seconds that the record is kept
--       [3] [4] jobs processed and failed that the child has flushed in all, with this flush
--       [5] number of counters, then for each: amount, seconds that it is kept (0: for ever)
--       then number of fields, for each: name, amount; if there are any, seconds that either hash is kept
--       then number of histograms, seconds that they are kept, then for each: number of buckets, then
--       for each bucket: its index, amount
--       then number of hashes of totals (their keys come last), for each: how many names it may have,
--       number of names, then for each: the name, number of fields, then for each: the field, amount
-- Returns the keys that hold another type, and so could not be added to. The rest was added.
--
-- The HDEL of nothing is for a full server: see retry.lua. The record is written next, so that a
-- flush that fails further down is not counted again.

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end
redis.call('HDEL', KEYS[1], '')
if tonumber(redis.call('HGET', KEYS[1], 'number') or -1) >= tonumber(ARGV[1]) then return {} end
redis.call('HSET', KEYS[1], 'number', ARGV[1], 'processed', ARGV[3], 'failed', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[2])

local at, key, refused = 4, 1, {}
local unpack = table.unpack or unpack -- Lua 5.4 has the former
local function argument() at = at + 1 return ARGV[at] end
local function next_key() key = key + 1 return KEYS[key] end

-- Runs a command and returns whether it succeeded: its key may hold another type.
local function added(command, name, ...)
  local reply = redis.pcall(command, name, ...)
  if type(reply) ~= 'table' or not reply.err then return true end
  refused[#refused + 1] = name
  return false
end

for _ = 1, tonumber(argument()) do
  local name, amount, ttl = next_key(), argument(), argument()
  if added('INCRBY', name, amount) and ttl ~= '0' then redis.call('EXPIRE', name, ttl) end
end

local fields = {}
for n = 1, tonumber(argument()) do fields[n] = { argument(), argument() } end
if #fields > 0 then
  for _ = 1, 2 do
    local name, ttl, fine = next_key(), argument(), true
    for _, field in ipairs(fields) do
      fine = fine and added('HINCRBY', name, field[1], field[2])
    end
    if fine then redis.call('EXPIRE', name, ttl) end
  end
end

local histograms, ttl = tonumber(argument()), argument()
for _ = 1, histograms do
  local name, command = next_key(), { 'OVERFLOW', 'SAT' }
  for _ = 1, tonumber(argument()) do
    local index, amount = argument(), argument()
    for _, part in ipairs({ 'INCRBY', 'u16', '#' .. index, amount }) do
      command[#command + 1] = part
    end
  end
  if added('BITFIELD', name, unpack(command)) then redis.call('EXPIRE', name, ttl) end
end

--- @include "counters/name_in_totals"

for _ = 1, tonumber(argument()) do
  local totals, most = next_key(), tonumber(argument())
  local fine = added('HLEN', totals)
  for _ = 1, tonumber(argument()) do
    local name = argument()
    if fine then name = name_in_totals(totals, name, most, added) end
    for _ = 1, tonumber(argument()) do
      local field, amount = argument(), argument()
      if fine then added('HINCRBY', totals, name .. '|' .. field, amount) end
    end
  end
end
return refused
