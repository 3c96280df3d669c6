-- Stands after the job's text: the loops around its functions. Every mode does at most one budget's worth of work
-- and answers cmsgpack: what stands at its mode, then the time that it took (false: no clock).
--
-- ARGV: mode, args, job id, access ('r' read, 'w' write, 'i' idempotent write), '1' to stop at the first failing key,
-- time budget in microseconds, key budget, a marker's life in milliseconds, '1' when keys may have expired unseen,
-- the matcher's kind and text; from 12 on what the mode needs.
do
local _G = skalds_globals
local redis, cmsgpack, string, table, error, pcall, xpcall, type, tonumber, tostring, unpack =
  _G.redis, _G.cmsgpack, _G.string, _G.table, _G.error, _G.pcall, _G.xpcall, _G.type, _G.tonumber, _G.tostring, _G.unpack
local call, try = redis.call, redis.pcall
local pack, unpack_all = cmsgpack.pack, cmsgpack.unpack
local sub, find, byte = string.sub, string.find, string.byte
local MODE, JOB, ACCESS, STOP = ARGV[1], ARGV[3], ARGV[4], ARGV[5] == '1'
local KEY_BUDGET, LIFE, MAY_EXPIRE = tonumber(ARGV[7]), ARGV[8], ARGV[9] == '1'
local FIRST, MAX_FAILURES, BATCH = 12, 20, 32

-- Redis 7.0 has no clock in scripts: there the key budget alone ends a call.
local os = _G.rawget(_G, 'os')
local clock = os and os.clock
local started = clock and clock() or 0
local deadline = started + tonumber(ARGV[6]) / 1e6
local spent = 0
local function over()
  if clock then return clock() >= deadline end
  return spent >= KEY_BUDGET
end

local visited, matched, failed, failures, stopped = 0, 0, 0, {}, false
skalds_fail = function(key, text)
  failed = failed + 1
  if #failures < MAX_FAILURES then failures[#failures + 1] = {key, text} end
  stopped = STOP
end

-- An error as text with the line of the user's own code in front. An error of redis.call carries no line; the stack
-- still does: `error` with an empty message names the place of a level.
local function where(err)
  local text = tostring(type(err) == 'table' and err.err or err)
  if find(text, '^user_script:%d+:') then return text end
  for level = 3, 12 do
    local _, place = pcall(error, '', level)
    if find(place, '^user_script:%d+:') then return place .. text end
  end
  return text
end

-- Runs the step on keys[first] to keys[last]. One protected call for as many keys as do not fail.
local acc
local list, at, stop_at
local function each_of_list()
  while at <= stop_at do
    acc = each(list[at], acc)
    at = at + 1
  end
end
local function apply(keys, first, last)
  matched = matched + last - first + 1
  if skalds_bulk then
    acc = skalds_bulk(keys, first, last, acc)
    return
  end
  list, at, stop_at = keys, first, last
  while at <= last do
    local ok, err = xpcall(each_of_list, where)
    if ok then return end
    skalds_fail(keys[at], err)
    if stopped then return end
    at = at + 1
  end
end

-- Marker keys are ours, not the user's: they match nothing.
local MARKER = 'skalds:unit:{'
local function is_marker(key)
  return byte(key) == 115 and sub(key, 1, #MARKER) == MARKER
end

local KIND, TEXT = ARGV[10], ARGV[11]
local matches
if KIND == 'prefix' then
  local length = #TEXT
  matches = function(key) return sub(key, 1, length) == TEXT end
elseif KIND == 'literal' then
  matches = function(key) return key == TEXT end
elseif KIND == 'parts' then
  -- What stands between the stars, as Lua patterns: the first is tied to the start, the last to the end, and those
  -- between are found one after the other, so no pattern can backtrack.
  local parts = unpack_all(TEXT)
  local count = #parts
  matches = function(key)
    local from, to = 1
    for i = 1, count do
      from, to = find(key, parts[i], from)
      if not from then return false end
      from = to + 1
    end
    return true
  end
end

-- Keeps what matches, in place; answers how many, and how many were markers.
local function filter(keys, count)
  local kept, markers = 0, 0
  for i = 1, count do
    local key = keys[i]
    if is_marker(key) then
      markers = markers + 1
    elseif not matches or matches(key) then
      kept = kept + 1
      keys[kept] = key
    end
  end
  return kept, markers
end

-- Keeps what exists, in place. GETKEYSINSLOT also names keys that have expired and are not removed yet.
local function only_existing(keys, first, last)
  if first > last then return keys, first, last end
  local there = 0
  for from = first, last, 1000 do
    there = there + call('EXISTS', unpack(keys, from, from + 999 < last and from + 999 or last))
  end
  if there == last - first + 1 then return keys, first, last end
  local kept = {}
  for i = first, last do
    if call('EXISTS', keys[i]) == 1 then kept[#kept + 1] = keys[i] end
  end
  return kept, 1, #kept
end

local function marker_of(tag, suffix)
  return MARKER .. tag .. '}:' .. JOB .. (suffix or '')
end

-- A marker's value: whether its unit is done, '=' and the last key applied (false: not known), counters, delta.
local function mark(marker, done, last, v, m, f, delta)
  call('SET', marker, pack(done, last, v, m, f, delta), 'PX', LIFE)
end

-- Reading a unit's own, missing marker key is the test that this node has the whole slot: it fails while the slot
-- moves. See the design of chain jobs.

-- Whole slots: (slot, tag) pairs.
-- Answers: pairs handled, counters, failures, refused {index, why}, indices of slots too big, deltas.
local function slots()
  local refused, big, deltas, handled = {}, {}, {}, 0
  local write, max, look_at_clock = ACCESS == 'w', KEY_BUDGET, 0
  for i = FIRST, #ARGV, 2 do
    local marker = marker_of(ARGV[i + 1])
    local seen = try('GET', marker)
    if not seen then
      local keys = call('CLUSTER', 'GETKEYSINSLOT', ARGV[i], max)
      local count = #keys
      if count >= max then
        big[#big + 1] = handled
      elseif count > 0 then
        if handled > 0 and clock and count > 64 then
          local now = clock()
          -- This one would go past the budget; the next call begins with it.
          if now + count * (now - started) / (spent + 1) > deadline then break end
        end
        local kept, markers = filter(keys, count)
        local first, last = 1, kept
        if MAY_EXPIRE then keys, first, last = only_existing(keys, 1, kept) end
        visited = visited + count - markers
        if first <= last then
          local failed_before = failed
          if write then acc = nil end
          apply(keys, first, last)
          if write then
            if acc ~= nil then deltas[#deltas + 1] = acc end
            if not stopped then mark(marker, true, false, count - markers, last - first + 1, failed - failed_before, acc) end
          end
          if stopped then break end
        end
        spent = spent + count
      end
    elseif type(seen) == 'table' then
      refused[#refused + 1] = {handled, seen.err}
    else
      local done, _, v, m, f, delta = unpack_all(seen)
      if done then
        visited, matched, failed = visited + v, matched + m, failed + f
        if delta ~= nil then deltas[#deltas + 1] = delta end
      else
        big[#big + 1] = handled
      end
    end
    handled = handled + 1
    spent = spent + 2
    if spent >= look_at_clock then
      if over() then break end
      look_at_clock = spent + BATCH
    end
  end
  if not write and acc ~= nil then deltas[#deltas + 1] = acc end
  return pack(handled, visited, matched, failed, failures, refused, big, deltas)
end

-- Listed keys of whole slots: (tag, count, key…) groups. Answers as `slots`.
local function groups()
  local refused, big, deltas, handled = {}, {}, {}, 0
  local write, i = ACCESS == 'w', FIRST
  while i <= #ARGV do
    local marker, count = marker_of(ARGV[i]), tonumber(ARGV[i + 1])
    local seen = try('GET', marker)
    if not seen then
      local keys, first, last = only_existing(ARGV, i + 2, i + 1 + count)
      local failed_before = failed
      visited = visited + count
      if write then acc = nil end
      if first <= last then apply(keys, first, last) end
      if write and first <= last then
        if acc ~= nil then deltas[#deltas + 1] = acc end
        if not stopped then mark(marker, true, false, count, last - first + 1, failed - failed_before, acc) end
      end
      if stopped then break end
    elseif type(seen) == 'table' then
      refused[#refused + 1] = {handled, seen.err}
    else
      local done, _, v, m, f, delta = unpack_all(seen)
      if done then
        visited, matched, failed = visited + v, matched + m, failed + f
        if delta ~= nil then deltas[#deltas + 1] = delta end
      else
        big[#big + 1] = handled
      end
    end
    handled = handled + 1
    spent = spent + count + 2
    i = i + 2 + count
    if over() then break end
  end
  if not write and acc ~= nil then deltas[#deltas + 1] = acc end
  return pack(handled, visited, matched, failed, failures, refused, big, deltas)
end

-- A part of one slot's keys, in ascending order: tag, '=' and the last key applied before ('' when none), '1' when
-- these are all that are left, then keys. For writes the counters and the accumulator go on from the marker's.
-- Answers: state ('ok', 'refused', 'marker'), then keys handled, counters, failures, accumulator; or why; or what
-- the marker says, when it knows more than the caller.
local function part()
  local marker, before, final = marker_of(ARGV[FIRST]), ARGV[FIRST + 1], ARGV[FIRST + 2] == '1'
  local seen = try('GET', marker)
  if type(seen) == 'table' then return pack('refused', seen.err) end
  local had_visited = 0
  if seen then
    local done, last, v, m, f, delta = unpack_all(seen)
    if done or (last or '') ~= before then return pack('marker', done, last, v, m, f, delta) end
    had_visited, matched, failed, acc = v, m, f, delta
  end
  local from, count = FIRST + 2, #ARGV - FIRST - 2
  local batch = KEY_BUDGET < BATCH and KEY_BUDGET or BATCH
  while visited < count do
    local first = from + visited + 1
    local last = first + batch - 1 < #ARGV and first + batch - 1 or #ARGV
    local keys, head, tail = only_existing(ARGV, first, last)
    if head <= tail then apply(keys, head, tail) end
    if stopped then break end
    visited = visited + last - first + 1
    spent = spent + last - first + 1
    if over() then break end
  end
  local handled = visited
  visited = visited + had_visited
  if ACCESS == 'w' and not stopped then
    mark(marker, final and handled == count, handled > 0 and '=' .. ARGV[from + handled] or before, visited, matched, failed, acc)
  end
  return pack('ok', handled, visited, matched, failed, failures, acc)
end

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

-- A server without cluster mode: cursor, COUNT. Answers: cursor, counters, failures, delta.
local function pages()
  local cursor = ARGV[FIRST]
  local marker = marker_of(cursor)
  if ACCESS == 'w' then
    local seen = call('GET', marker)
    if seen then
      local _, then_cursor, v, m, f, delta = unpack_all(seen)
      return pack(then_cursor, v, m, f, failures, delta)
    end
  end
  repeat
    local page = call('SCAN', cursor, 'COUNT', ARGV[FIRST + 1])
    local keys = page[2]
    local count = #keys
    cursor = page[1]
    local kept, markers = filter(keys, count)
    visited = visited + count - markers
    if kept > 0 then apply(keys, 1, kept) end
    spent = spent + count + 2
  until stopped or cursor == '0' or over()
  if ACCESS == 'w' and not stopped and matched > 0 then mark(marker, false, cursor, visited, matched, failed, acc) end
  return pack(cursor, visited, matched, failed, failures, acc)
end

-- One unit of a strict order. Answers nothing, or why this node cannot do it.
local function one_key(key, tag, suffix, must_exist)
  local marker = marker_of(tag, suffix)
  local seen = try('GET', marker)
  if type(seen) == 'table' then return seen.err end
  if seen then
    local _, _, v, m, f, value = unpack_all(seen)
    visited, matched, failed, acc = visited + v, matched + m, failed + f, value
    return
  end
  local m, f = matched, failed
  visited = visited + 1
  if call('EXISTS', key) == 1 then
    apply({key}, 1, 1)
  elseif must_exist then
    skalds_fail(key, 'there is no such key')
  end
  if ACCESS == 'w' and not stopped then mark(marker, true, false, 1, matched - m, failed - f, acc) end
end

-- Listed keys in order: accumulator, number of the first, (key, tag) pairs.
-- Answers: keys handled, counters, failures, why it ended early (false: it did not), accumulator.
local function ordered()
  acc = unpack_all(ARGV[FIRST])
  local number, handled, why = tonumber(ARGV[FIRST + 1]), 0
  for i = FIRST + 2, #ARGV, 2 do
    why = one_key(ARGV[i], ARGV[i + 1], ':' .. string.format('%d', number + handled))
    if why or stopped then break end
    handled = handled + 1
    spent = spent + 4
    if over() then break end
  end
  return pack(handled, visited, matched, failed, failures, why or false, acc)
end

-- What goes between the braces of a key of ours to put it into this key's slot; nothing where that cannot be told
-- from the key alone.
local function tag_of(key)
  local open = find(key, '{', 1, true)
  local close = open and find(key, '}', open + 1, true)
  if close and close > open + 1 then return sub(key, open + 1, close - 1) end
  if key ~= '' and not find(key, '}', 1, true) then return key end
end

-- A walk: accumulator, number of the next step, how many more are allowed, key, tag.
-- Answers: steps done, counters, failures, why it ended early (false: it did not), the next key (false: none),
-- accumulator.
local function walk()
  acc = unpack_all(ARGV[FIRST])
  local number, allowed = tonumber(ARGV[FIRST + 1]), tonumber(ARGV[FIRST + 2])
  local key, tag, steps, why = ARGV[FIRST + 3], ARGV[FIRST + 4], 0
  local following = next
  local function step_on() return following(key, acc) end
  repeat
    why = one_key(key, tag, ':' .. string.format('%d', number + steps), true)
    if why or stopped then break end
    local ok, after = xpcall(step_on, where)
    if not ok then
      skalds_fail(key, after)
      if stopped then break end
      after = nil
    end
    steps = steps + 1
    spent = spent + 4
    key = after and after ~= '' and tostring(after) or false
    tag = key and tag_of(key)
  until not key or not tag or steps >= allowed or over()
  return pack(steps, visited, matched, failed, failures, why or false, key, acc)
end

local function protected(action)
  local ok, value = xpcall(action, where)
  return pack(ok, value)
end

local modes = {
  slots = slots, groups = groups, part = part, scan = scan, keys = keys_of_slots, existing = existing, write = write,
  pages = pages, ordered = ordered, walk = walk,
  defines = function()
    local is = function(value) return type(value) == 'function' end
    return pack(is(each) or is(skalds_bulk), is(merge), is(finish), is(next) and next ~= _G.next)
  end,
  merge = function()
    return protected(function() return merge(unpack_all(ARGV[FIRST]), unpack_all(ARGV[FIRST + 1])) end)
  end,
  finish = function()
    return protected(function()
      local value = unpack_all(ARGV[FIRST])
      if finish then return finish(value) end
      return value
    end)
  end,
}
-- Last in every answer: how long it took by the script's own clock, in microseconds.
return modes[MODE]() .. pack(clock and (clock() - started) * 1e6 or false)
end
