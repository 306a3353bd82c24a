-- Part of fetch.lua: takes jobs from the queues of one group.

-- One job from each queue that has some, then one more from each, and so on.
local function take_in_turn(first, last, count)
  local rooms, shares, left = {}, {}, count
  for queue = first, last do rooms[queue], shares[queue] = room(queue, count), 0 end
  local before
  repeat
    before = left
    for queue = first, last do
      if left > 0 and shares[queue] < rooms[queue] then
        shares[queue] = shares[queue] + 1
        left = left - 1
      end
    end
  until left == before
  local taken = 0
  for queue = first, last do
    if shares[queue] > 0 then taken = taken + take(queue, shares[queue]) end
  end
  -- Queues that turned out to be damaged gave nothing: the others get their turns.
  if taken < count - left and bytes_left > 0 then
    taken = taken + take_in_turn(first, last, count - taken)
  end
  return taken
end

local function take_in_order(first, last, count)
  local taken = 0
  for queue = first, last do
    if taken == count then break end
    taken = taken + take(queue, count - taken)
  end
  return taken
end

local function take_from(group, count)
  if count == 0 then return 0 end
  return (group.in_turn and take_in_turn or take_in_order)(group.first, group.last, count)
end
