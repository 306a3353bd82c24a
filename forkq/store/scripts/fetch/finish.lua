-- Part of fetch.lua: wakes the children that wait for a permit, and completes the answer.

for queue, count in pairs(removed) do
  if count > (added[queue] or 0) then
    local start = KEYS[2 * queue + 2]:sub(1, -9)
    call('DEL', start .. 'full', start .. 'busy')
  end
end
if want > 0 and bytes_left <= 0 and answer[2] == 0 then answer[2] = 1 end
for queue, key_number in pairs(damaged) do
  local reasons = answer[3]
  local last = #reasons
  reasons[last + 1], reasons[last + 2], reasons[last + 3] = queue, 'damaged', key_number
end
