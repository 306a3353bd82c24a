-- Part of fetch.lua: moves payloads from the list of a queue to its in-flight hash.
--
-- Redis and Lua write numbers slowly. So most texts are made of other texts: the leases of ten jobs
-- differ in one digit only, and the range of a list to read is nearly always the same.

local STEP, STEP_RANGE = 32, '-32' -- how many payloads are read at first: each may be large
local bytes_left = 524288 -- an answer stands for about as many bytes of payloads, and one job
local LARGE = 262144 -- of a larger payload the answer has the length only

local usual, usual_range = STEP, STEP_RANGE
if want < STEP then usual, usual_range = want, '-' .. ARGV[1] end
local prefix = owner .. ARGV[3]:sub(1, -2) -- of the next lease: all but its last digit

-- Leases payloads, the last one first, while there are bytes left. Returns how many, and the
-- fields added to the hash; none if that is damaged.
local function lease(queue, payloads)
  local key, fields, taken, last = KEYS[2 * queue + 2], {}, 0, #answer
  local ZERO, char = 48, string.char
  local next_prefix, digit, left = prefix, sequence % 10, bytes_left
  for i = #payloads, 1, -1 do
    if left <= 0 then break end
    local payload, at = payloads[i], 2 * taken
    local size = #payload
    fields[at + 1], fields[at + 2] = next_prefix .. char(ZERO + digit), payload
    answer[last + at + 1], answer[last + at + 2] = queue, size > LARGE and size or payload
    taken, digit, left = taken + 1, digit + 1, left - size
    if digit == 10 then next_prefix, digit = owner .. math.floor((sequence + taken) / 10), 0 end
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
  prefix, sequence, bytes_left = next_prefix, sequence + taken, left
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
    local stay = taken < 9 and '-' .. string.char(49 + taken) or -taken - 1
    if pcall('LTRIM', list, '0', stay).err then -- refused: the jobs stay in the list only
      for i = 1, taken do call('HDEL', KEYS[2 * queue + 2], fields[2 * i - 1]) end
      call('LTRIM', list, '0', stay) -- raises the refusal
    end
    moved, step = moved + taken, 2 * step
  until moved == count or bytes_left <= 0 or #found < asked
  if moved > 0 then added[queue] = (added[queue] or 0) + moved end
  return moved
end
