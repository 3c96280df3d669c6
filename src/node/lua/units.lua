-- Units done in the engine: slots, groups of listed keys, parts of a big slot, SCAN pages.
--
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

-- Removes the markers of slots: tags. Answers: how many were looked at. A slot that moves keeps its own.
local function forget()
  local handled = 0
  for i = FIRST, #ARGV do
    try('UNLINK', marker_of(ARGV[i]))
    handled, spent = handled + 1, spent + 1
    if handled % BATCH == 0 and over() then break end
  end
  return pack(handled)
end

-- Counts keys of slots that are not this node's: (first, last) ranges.
-- Answers: ranges done, the next slot to look at in the range at hand, keys found.
local function foreign()
  local done, found, slot = 0, 0, 0
  for i = FIRST, #ARGV, 2 do
    slot = tonumber(ARGV[i])
    local last = tonumber(ARGV[i + 1])
    while slot <= last do
      found, slot, spent = found + call('CLUSTER', 'COUNTKEYSINSLOT', slot), slot + 1, spent + 1
      if spent % BATCH == 0 and over() then return pack(slot > last and done + 1 or done, slot, found) end
    end
    done = done + 1
  end
  return pack(done, slot, found)
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
-- these are all that are left, keys set aside since the marker was written, then keys. For writes the counters and the accumulator go on from the marker's.
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
  local aside = tonumber(ARGV[FIRST + 3])
  had_visited, matched, failed = had_visited + aside, matched + aside, failed + aside
  local from, count = FIRST + 3, #ARGV - FIRST - 3
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

-- A server without cluster mode: cursor, COUNT, '1' for one page alone. Answers: cursor, counters, failures, delta.
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
  until stopped or cursor == '0' or ARGV[FIRST + 2] == '1' or over()
  if ACCESS == 'w' and not stopped and matched > 0 then mark(marker, false, cursor, visited, matched, failed, acc) end
  return pack(cursor, visited, matched, failed, failures, acc)
end
