-- Part of fetch.lua: wakes the children that wait for a permit, and completes the answer.

for i = 1, removed and #removed or 0, 2 do
  if removed[i + 1] > (added[removed[i]] or 0) then
    call('DEL', KEYS[2 * ARGV[7] + 2 + (i + 1) / 2])
  end
end
if want > 0 and bytes_left <= 0 and answer[2] == 0 then answer[2] = 1 end
for queue, key_number in pairs(damaged) do
  local reasons = answer[3]
  local last = #reasons
  reasons[last + 1], reasons[last + 2], reasons[last + 3] = queue, 'damaged', key_number
end
