-- Part of fetch.lua: removes the leases of finished jobs.

for number = 1, tonumber(ARGV[8]) do
  local queue, count = tonumber(ARGV[position + 1]), tonumber(ARGV[position + 2])
  local key, leases = KEYS[2 * queue + 2], {}
  position = position + 2
  for i = 1, count do leases[i] = owner .. ARGV[position + i] end
  position = position + count
  local found = pcall('HDEL', key, unpack(leases))
  if type(found) == 'table' then
    check_damage(found, 'HDEL', key, unpack(leases))
    found, damaged[queue] = 0, 2
  end
  if found < count then answer[1] = 1 end
  -- A call that only acknowledges may be a repetition: the first call may have removed the leases
  -- and failed before it woke the children that wait for a permit.
  local gone = want == 0 and count or found
  if removed then
    removed[2 * number - 1], removed[2 * number] = queue, gone
  else
    removed = { queue, gone } -- a table that is made with its values takes half the time
  end
end
