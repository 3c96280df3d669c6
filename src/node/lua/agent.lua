-- What the agent asks for when it works key by key: which keys there are, and writes with a unit's marker.

-- A slot's keys themselves, for a slot too big for one call: tag, slot, cursor ('' for all keys at once), count.
-- Answers: state, cursor, keys, what its marker says, how many keys the slot has (expired ones included).
local function scan()
  local seen = try('GET', marker_of(ARGV[FIRST]))
  if type(seen) == 'table' then return pack('refused', seen.err) end
  local slot, cursor = ARGV[FIRST + 1], ARGV[FIRST + 2]
  local count = call('CLUSTER', 'COUNTKEYSINSLOT', slot)
  if cursor == '' then
    return pack('ok', '0', call('CLUSTER', 'GETKEYSINSLOT', slot, count + 1), seen, count)
  end
  local page = call('SCAN', cursor, 'COUNT', ARGV[FIRST + 3])
  return pack('ok', page[1], page[2], seen, count)
end

-- The matching keys of whole slots, for steps that run in the agent: (slot, tag) pairs.
-- Answers: pairs handled, refused, indices of slots too big or begun, {index, visited, keys}, {index, marker}.
local function keys_of_slots()
  local refused, big, found, markers, handled = {}, {}, {}, {}, 0
  for i = FIRST, #ARGV, 2 do
    local seen = try('GET', marker_of(ARGV[i + 1]))
    if not seen then
      local keys = call('CLUSTER', 'GETKEYSINSLOT', ARGV[i], KEY_BUDGET)
      local count = #keys
      if count >= KEY_BUDGET then
        big[#big + 1] = handled
      elseif count > 0 then
        local kept, own = filter(keys, count)
        local first, last = 1, kept
        if MAY_EXPIRE then keys, first, last = only_existing(keys, 1, kept) end
        for j = #keys, last + 1, -1 do keys[j] = nil end
        found[#found + 1] = {handled, count - own, keys}
      end
      spent = spent + count
    elseif type(seen) == 'table' then
      refused[#refused + 1] = {handled, seen.err}
    else
      markers[#markers + 1] = {handled, seen}
    end
    handled = handled + 1
    spent = spent + 2
    if over() then break end
  end
  return pack(handled, refused, big, found, markers)
end

-- Which of these keys exist: tag, marker suffix, then keys. Answers: state, what the marker says, the keys.
local function existing()
  local seen = try('GET', marker_of(ARGV[FIRST], ARGV[FIRST + 1]))
  if type(seen) == 'table' then return pack('refused', seen.err) end
  local keys, first, last = only_existing(ARGV, FIRST + 2, #ARGV)
  return pack('ok', seen, {unpack(keys, first, last)})
end

-- What a step that ran in the agent wants written: tag, marker suffix, the marker's value before ('' when none) and
-- after, then (arguments, argument…) commands.
-- Answers: state, or why, or what the marker says; failed commands {index, text}.
local function write()
  local marker = marker_of(ARGV[FIRST], ARGV[FIRST + 1])
  local seen = try('GET', marker)
  if type(seen) == 'table' then return pack('refused', seen.err) end
  if (seen or '') ~= ARGV[FIRST + 2] then return pack('marker', seen) end
  local i, index, wrong = FIRST + 4, 0, {}
  while i <= #ARGV do
    local count = tonumber(ARGV[i])
    local answer = try(unpack(ARGV, i + 1, i + count))
    if type(answer) == 'table' and answer.err then wrong[#wrong + 1] = {index, answer.err} end
    i, index = i + 1 + count, index + 1
  end
  if ACCESS == 'w' then call('SET', marker, ARGV[FIRST + 3], 'PX', LIFE) end
  return pack('ok', wrong)
end
