-- Looks for cancelled jobs in a page of a list, of a sorted set, or of an in-flight hash. Changes nothing.
--
-- KEYS  [1] what is cancelled   [2] the list, set or hash
-- ARGV  [1] 'list', 'set' or 'hash'   [2] where to go on: how many entries of the list were looked at
--       before, counted from the left end, where jobs enter; the cursor of a set; a hash is read whole
--       [3] how many to look at, at most   [4] and about how many bytes   [5] 1 if classes or batches are cancelled
-- Returns where to go on ('' at the end); of a list how many entries are behind the page, how many are in
-- it, and its first one; then the payloads that may be cancelled.
--
-- A note is about a job, a class or a batch by its name, so the names that stand in a page are looked up in the
-- notes, all at once. The same text may stand in the arguments of another job: the clock decodes what it
-- gets. ZSCAN misses no member that is there from its beginning to its end.

local CHUNK = 500
local fields, owners, found = {}, {}, {} -- names to look up, whose they are; the payloads by place

-- A name with an escape may be written in several ways: only the clock reads it.
local function note_names(place, payload, key, kind)
  local at = payload:find(key, 1, true)
  while at do
    local name = payload:match('^%s*:%s*"([^"]*)"', at + #key)
    if name and name:find('\\', 1, true) then
      found[place] = true
    elseif name then
      fields[#fields + 1], owners[#owners + 1] = kind .. name, place
    end
    at = payload:find(key, at + #key, true)
  end
end

local function note(place, payload)
  note_names(place, payload, '"jid"', 'jid:')
  if ARGV[5] ~= '1' then return end
  note_names(place, payload, '"class"', 'class:')
  note_names(place, payload, '"wrapped"', 'class:')
  note_names(place, payload, '"bid"', 'batch:')
end

local function look_up()
  for first = 1, #fields, CHUNK do
    local last = math.min(#fields, first + CHUNK - 1)
    for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(fields, first, last))) do
      if value then found[owners[first + i - 1]] = true end
    end
  end
end

--- @include "list_part"

local function page_of_set()
  local cursor, flat = unpack(read('ZSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3]) or { '0', {} })
  local page = {}
  for i = 1, #flat, 2 do page[#page + 1] = flat[i] end
  return page, { cursor == '0' and '' or cursor }
end

local page, answer
if ARGV[1] == 'list' then
  page, answer = part_of_list(KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
elseif ARGV[1] == 'set' then
  page, answer = page_of_set()
else
  page, answer = read('HVALS', KEYS[2]) or {}, { '' }
end
for place, payload in ipairs(page) do note(place, payload) end
look_up()
for place, payload in ipairs(page) do
  if found[place] then answer[#answer + 1] = payload end
end
return answer
