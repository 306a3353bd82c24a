-- Part of fetch.lua: takes jobs from the groups, in their order or by weight.

-- Chooses a group for each job wanted, never for all at once. Returns how many each group shall give.
local function draw(total)
  local drawn, last = {}, #groups
  for g = 1, last do drawn[g] = 0 end
  for _ = 1, want do
    local point, g = math.random() * total, 1
    while point >= groups[g].weight and g < last do
      point = point - groups[g].weight
      g = g + 1
    end
    drawn[g] = drawn[g] + 1
  end
  return drawn
end

-- A group that has no more jobs to give leaves the draw.
local function take_by_weight()
  math.randomseed(seed)
  local total = 0
  for _, group in ipairs(groups) do total = total + group.weight end
  while want > 0 and total > 0 do
    local drawn = draw(total)
    for g, group in ipairs(groups) do
      local taken = take_from(group, drawn[g])
      want = want - taken
      if taken < drawn[g] then
        total = total - group.weight
        group.weight = 0
      end
    end
  end
end

if seed ~= 0 then
  take_by_weight()
elseif #groups > 0 then
  for _, group in ipairs(groups) do want = want - take_from(group, want) end
else
  want = want - take_in_order(1, queues, want)
end
