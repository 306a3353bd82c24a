-- Part of push.lua: whether a job is pushed, by its jid, by its lock and by its window.

-- The jid of the other job that has the lock, and true if this one may be pushed later; or an error reply. Nothing if it
-- may be pushed now, and what `taken` is to note then. A lock that holds another type is left out.
local function look_at_lock(taken, lock, jid, class, at, payload)
  local holder = taken[lock] or holder_of(lock)
  if is_error(holder) then
    count_end(KEYS[4], 'damaged', '(feature)')
    return nil
  end
  if holder ~= '' and holder ~= jid then
    local refusal = count_or_refuse(KEYS[4], 'duplicate', class)
    if refusal then return refusal end
    return holder, not taken[lock] and note_if_doubted(KEYS[#KEYS], lock, at or '', payload)
  end
  return nil, { lock, jid, holder == '', at }
end

local function take_locks(taken, class, seconds, letter)
  for _, each in ipairs(taken) do
    local lock, jid, is_new, at = unpack(each, 1, 4)
    local delay = at and math.max(0, 1000 * at - started) or 0
    take_lock(lock, jid, class, delay + 1000 * seconds, is_new, letter == 'e')
  end
end

-- The reply for a job whose window is used up; nothing if it is not.
local function look_at_window(group, window)
  local count = group.pushed[window] or 0
  if is_used_up(window, count, group.most, group.milliseconds, KEYS[4]) then
    return count_or_refuse(KEYS[4], 'throttled', group.class) or ''
  end
  group.pushed[window] = count + 1
end

-- The reply for a job that is not pushed now; nothing if it is.
local function look(group, number, payload, at, jid)
  local push_key = group.known and KEYS[group.known + number]
  local reply, found = push_key and known_push(push_key, group.new, KEYS[4], group.class), nil
  if reply then return reply end
  if group.locks then
    local lock, kept = KEYS[group.locks + number], group.letter ~= 'f' and payload
    reply, found = look_at_lock(group.taken, lock, jid, group.class, at, kept)
    if reply and found == true and push_key then note_push(push_key, reply) end
  end
  reply = reply or group.windows and look_at_window(group, KEYS[group.windows + number])
  if reply then return reply end
  if found then group.taken[found[1]], group.taken[#group.taken + 1] = jid, found end
  if push_key then group.new[push_key], group.new[#group.new + 1] = true, push_key end
end
