-- Part of flow.lua: the steps behind one that has changed are told.

-- What the change of a step means for these next ones, of which each is an index and a letter.
local function sort(place, found, nexts, old, new)
  local indices, starts, cancels, waits = {}, {}, {}, {}
  for i, each in ipairs(nexts) do indices[i] = each[1] end
  local before = redis.call('HMGET', place.steps, unpack(fields_of({ 'wait:' }, indices)))
  for i, each in ipairs(nexts) do
    local index, letter = each[1], each[2]
    local wait = tonumber(before[i])
    local left = wait and wait + (lets_start(old, letter) and 1 or 0) - (lets_start(new, letter) and 1 or 0)
    if wait and ends_next(new, letter) or left == 0 and found.state == 'cancelled' then
      cancels[#cancels + 1] = index
    elseif left == 0 then
      starts[#starts + 1] = index
    elseif left ~= wait then
      waits[#waits + 1] = 'wait:' .. index
      waits[#waits + 1] = left
    end
  end
  return starts, cancels, waits
end

-- At most so many of the next steps of `item` that are still to be told, and where those behind them begin.
local function nexts_of(place, item, most)
  local at, nexts, text = item[4], {}, nil
  if item[1] == '*' then
    local last = math.min(item[5], at + most - 1)
    for index = at, last do nexts[#nexts + 1] = { index, 'c' } end
    return nexts, last + 1
  end
  text = redis.call('HGET', place.steps, 'next:' .. item[1]) or ''
  while at <= item[5] and #nexts < most do
    local _, last, index, letter = text:find('^(%d+)(%l)', at)
    if not last then return nexts, item[5] + 1 end
    nexts[#nexts + 1], at = { index, letter }, last + 1
  end
  return nexts, at
end

-- Tells next steps, the oldest change first. Returns the number of the first change in `todo` that is left.
local function work(place, found, todo)
  local left, first = MOST_TOLD, 1
  while todo[first] and left > 0 do
    local item = todo[first]
    local nexts, at = nexts_of(place, item, left)
    if #nexts > 0 then
      local starts, cancels, waits = sort(place, found, nexts, item[2], item[3])
      if not start(place, starts) then return first end
      if #waits > 0 then redis.pcall('HSET', place.steps, unpack(waits)) end
      cancel(place, found, cancels, item[1] ~= '*' and todo)
    end
    item[4], left = at, left - #nexts
    if at > item[5] then first = first + 1 end
  end
  return first
end

local function read_todo(text)
  local todo = {}
  for index, old, new, first, last in (text or ''):gmatch('([%d*]*) (%d) (%d) (%d+) (%d+),') do
    todo[#todo + 1] = { index, tonumber(old), tonumber(new), tonumber(first), tonumber(last) }
  end
  return todo
end

-- Keeps the changes from the `first` one on.
local function write_todo(place, todo, first)
  if not todo[first] then
    redis.pcall('HDEL', place.steps, 'todo')
    redis.pcall('SREM', place.unfinished, place.hash)
    return
  end
  local lines = {}
  for i = first, #todo do lines[#lines + 1] = table.concat(todo[i], ' ') .. ',' end
  redis.pcall('HSET', place.steps, 'todo', table.concat(lines))
  redis.pcall('SADD', place.unfinished, place.hash)
end

-- Goes on with what was left, and then with `item`, if there is one. The type of `steps` is known.
function flow.go_on(place, found, item)
  local before = redis.call('HGET', place.steps, 'todo')
  if not before and (not item or item[4] > item[5]) then return end
  local todo = read_todo(before)
  todo[#todo + 1] = item
  local first = work(place, found, todo)
  if before or todo[first] then write_todo(place, todo, first) end
end

-- A step has another state: its next ones are told.
function batch.follow(place, found, member, old, new)
  redis.pcall('EXPIRE', place.steps, BATCH_LIVES)
  flow.go_on(place, found, { member, old, new, 1, length_of(place, member) })
end
