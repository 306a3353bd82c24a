-- Part of fetch.lua: moves payloads from the list of a queue to its in-flight hash.
--
-- Redis and Lua write numbers slowly. So most texts are made of other texts: the leases of ten jobs
-- differ in one digit only, and the range of a list to read is nearly always the same.

local char = string.char
local STEP, STEP_RANGE = 16, '-16' -- how many payloads are read at first: each may be large
local NINE = 57 -- the character

local bytes_left = 524288 -- an answer holds about as many bytes of payloads, and one job
local prefix, digit = owner .. ARGV[3]:sub(1, -2), ARGV[3]:byte(-1) -- of the next lease
local usual, usual_range = STEP, STEP_RANGE
if want < STEP then usual, usual_range = want, '-' .. ARGV[1] end

-- Leases payloads, the last one first, while there are bytes left. Returns how many, and the
-- fields added to the hash. None if that is damaged.
local function lease(queue, payloads)
  local key, fields, taken, last = KEYS[2 * queue + 2], {}, 0, #answer
  local next_prefix, next_digit, left = prefix, digit, bytes_left
  for i = #payloads, 1, -1 do
    if left <= 0 then break end
    local payload, at = payloads[i], 2 * taken
    if next_digit > NINE then
      next_prefix, next_digit = owner .. (sequence + taken) / 10, NINE - 9
    end
    fields[at + 1], fields[at + 2] = next_prefix .. char(next_digit), payload
    answer[last + at + 1], answer[last + at + 2] = queue, payload
    taken, next_digit, left = taken + 1, next_digit + 1, left - #payload
  end
  if type(pcall('HSET', key, unpack(fields))) == 'table' then
    local reply = pcall('HDEL', key, '') -- a full server takes the leases after a removal
    if type(reply) == 'table' then
      check_damage(reply, 'HDEL', key, '')
      damaged[queue] = 2
      for i = #answer, last + 1, -1 do answer[i] = nil end
      return 0
    end
    call('HSET', key, unpack(fields))
  end
  prefix, digit, sequence, bytes_left = next_prefix, next_digit, sequence + taken, left
  return taken, fields
end

-- Moves up to `count` payloads, as many as there are and fit into the answer. Returns how many.
local function move(queue, count)
  if bytes_left <= 0 or damaged[queue] then return 0 end
  local list, step, moved = KEYS[2 * queue + 1], STEP, 0
  repeat
    local asked = count - moved
    if asked > step then asked = step end
    local found = pcall('LRANGE', list, asked == usual and usual_range or -asked, '-1')
    if found.err then
      check_damage(found, 'LRANGE', list, -asked, '-1')
      damaged[queue] = 1
    end
    if not found[1] then break end
    local taken, fields = lease(queue, found)
    if taken == 0 then break end
    local stay = taken < 9 and '-' .. char(NINE - 8 + taken) or -taken - 1
    if pcall('LTRIM', list, '0', stay).err then -- refused: the jobs stay in the list only
      for i = 1, taken do call('HDEL', KEYS[2 * queue + 2], fields[2 * i - 1]) end
      call('LTRIM', list, '0', stay) -- raises the refusal
    end
    moved, step = moved + taken, 2 * step
  until moved == count or bytes_left <= 0 or #found < asked
  if moved > 0 then added[queue] = (added[queue] or 0) + moved end
  return moved
end
