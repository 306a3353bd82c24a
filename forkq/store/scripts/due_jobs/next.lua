-- Part of due_jobs.lua: reads the members to move next.

local function ends_of(rank, member)
  return { rank, #member, member:sub(1, HEAD), member:sub(-TAIL) }
end

-- One by one, because the size of a member is only known once it was read.
local answer, most, bytes_left = { '', refusing }, tonumber(ARGV[2]), tonumber(ARGV[3])
while true do
  if #answer - 1 > most or bytes_left <= 0 then
    answer[1] = ARGV[1]
    break
  end
  local rank = #answer - 2
  local found = redis.call('ZRANGE', KEYS[1], rank, rank, 'WITHSCORES')
  if not found[1] then break end
  if tonumber(found[2]) > tonumber(ARGV[1]) then
    answer[1] = found[2]
    break
  end
  local member = found[1]
  answer[#answer + 1] = #member > LARGE and ends_of(rank, member) or member
  bytes_left = bytes_left - #member
end
