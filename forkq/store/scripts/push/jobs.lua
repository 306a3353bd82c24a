-- Part of push.lua: the jobs of a group.

-- The reply for the job if a part does not let it through; else nothing, and its payload.
local function pass(group, number, payload, at, jid)
  for n = 1, #group do
    local look = group[n].look
    if look then
      local reply, is_noted = look(number, payload, at, jid)
      if is_noted and note_holder then note_holder(number, reply) end
      if reply then return reply end
    end
  end
  for n = 1, #group do payload = group[n].take(number, payload, at, jid) or payload end
  return nil, payload
end

-- Reads the jobs of the group, whose arguments begin there. Returns where those of the next group begin, and what is
-- pushed: for LPUSH or ZADD, and how many jobs that are.
local function read_jobs(group, i, count, is_scheduled, has_jids, moment)
  local batch, pushed = {}, 0
  for number = 1, count do
    local payload, at, jid = ARGV[i], nil, nil
    if moment then payload = payload:gsub(MOMENT, moment) end
    if is_scheduled then i, at = i + 1, ARGV[i + 1] end
    if has_jids then i, jid = i + 1, ARGV[i + 1] end
    i = i + 1
    local reply, passed = pass(group, number, payload, at, jid)
    replies[#replies + 1] = reply or 1
    if reply then
      is_done = false
    else
      if at then batch[#batch + 1] = at end
      batch[#batch + 1], pushed = passed, pushed + 1
    end
  end
  return i, batch, pushed
end
