-- Looks for jobs by their jids, or by their batches, in a part of a list, of a sorted set, or in an in-flight hash. Changes nothing.
--
-- KEYS  [1] the list, set or hash   [2] of a list: the in-flight hash of its queue
-- ARGV  [1] 'list', 'set' or 'hash'   [2] where to go on: how many entries of the list were looked at
--       before, counted from the left end, where jobs enter; the cursor of a set; a hash is read whole
--       [3] how many to look at, at most   [4] and about how many bytes   [5 ..] the jids, or the ids of the batches
-- Returns where to go on ('' at the end); then of each job that may be one of them: the number of its key,
-- its lease, its score or '', and its payload.
--
-- With the end of the list, from which jobs are fetched and to which they return, the hash is read in the same
-- moment: so no job is missed that moves between the two. A jid may stand in the arguments of another job: the
-- caller decodes what it gets. ZSCAN misses no member that is there from its beginning to its end.

local wanted, answer = {}, { '' }
for i = 5, #ARGV do wanted[ARGV[i]] = true end

--- @include "list_part"

-- A name with an escape may be written in several ways: only the caller reads it.
local function has_one(payload, key)
  local at = payload:find(key, 1, true)
  while at do
    local name = payload:match('^%s*:%s*"([^"]*)"', at + #key)
    if name and (wanted[name] or name:find('\\', 1, true)) then return true end
    at = payload:find(key, at + #key, true)
  end
end

local function look_at(number, mark, payload)
  if not (has_one(payload, '"jid"') or has_one(payload, '"bid"') or has_one(payload, '"of"')) then return end
  for _, part in ipairs({ number, mark, payload }) do answer[#answer + 1] = part end
end

local function look_at_hash(number)
  local leases = read('HGETALL', KEYS[number]) or {}
  for i = 1, #leases, 2 do look_at(number, leases[i], leases[i + 1]) end
end

if ARGV[1] == 'list' then
  local page, place = part_of_list(KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
  for _, payload in ipairs(page) do look_at(1, '', payload) end
  if place[1] == '' and KEYS[2] then look_at_hash(2) end
  answer[1] = place[1]
elseif ARGV[1] == 'set' then
  local cursor, page = unpack(read('ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3]) or { '0', {} })
  for i = 1, #page, 2 do look_at(1, page[i + 1], page[i]) end
  answer[1] = cursor == '0' and '' or cursor
else
  look_at_hash(1)
end
return answer
