-- Writes the results of jobs that scripts have ended which could not know the keys of these.
--
-- KEYS  [1] the notes of these scripts   [2 ..] the result of each job
-- ARGV  for each job: its note; what stood in its key ('': nothing is to be written); the result; for how many
--       milliseconds it is kept
-- Returns how many were written.
--
-- A key that has changed since is left alone: the job has another end, or waits anew. The first write is a
-- removal, so a full server takes the rest.

local unpack = table.unpack or unpack -- Lua 5.4 has the former
local written = 0

for i = 1, #ARGV, 4 do
  local note, before, text, milliseconds = unpack(ARGV, i, i + 3)
  local key = KEYS[1 + (i + 3) / 4]
  redis.call('LREM', KEYS[1], 1, note)
  if before ~= '' and redis.pcall('GET', key) == before then
    redis.call('SET', key, text, 'PX', milliseconds)
    written = written + 1
  end
end
return written
