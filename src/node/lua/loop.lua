-- Stands after the job's text: the loops around its functions. Every mode does at most one budget's worth of work
-- and answers cmsgpack: what stands at its mode, then the time that it took (false: no clock).
--
-- ARGV: mode, args, job id, access ('r' read, 'w' write, 'i' idempotent write), '1' to stop at the first failing key,
-- time budget in microseconds, key budget, a marker's life in milliseconds, '1' when keys may have expired unseen,
-- the matcher's kind and text, the server's time in milliseconds after which the call is too late (0: never); from 13
-- on what the mode needs.
do
local _G = skalds_globals
local redis, cmsgpack, string, table, error, pcall, xpcall, type, tonumber, tostring, unpack =
  _G.redis, _G.cmsgpack, _G.string, _G.table, _G.error, _G.pcall, _G.xpcall, _G.type, _G.tonumber, _G.tostring, _G.unpack
local call, try = redis.call, redis.pcall
local pack, unpack_all = cmsgpack.pack, cmsgpack.unpack
local sub, find, byte = string.sub, string.find, string.byte
local MODE, JOB, ACCESS, STOP = ARGV[1], ARGV[3], ARGV[4], ARGV[5] == '1'
local KEY_BUDGET, LIFE, MAY_EXPIRE = tonumber(ARGV[7]), ARGV[8], ARGV[9] == '1'
local FIRST, MAX_FAILURES, BATCH = 13, 20, 32

-- The agent has stopped waiting for this call: what it would do now, nobody would know of.
local NOT_AFTER = tonumber(ARGV[12])
if NOT_AFTER > 0 then
  local now = call('TIME')
  if now[1] * 1000 + now[2] / 1000 > NOT_AFTER then return redis.error_reply('LATE the call came too late') end
end

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

-- Keeps what matches, in place; answers how many, and how many were markers.
local KIND, TEXT = ARGV[10], ARGV[11]
local filter
if KIND == 'prefix' and sub(MARKER, 1, #TEXT) ~= TEXT and sub(TEXT, 1, #MARKER) ~= MARKER then
  -- The most common kind, without a function call for each key: no marker begins like this.
  local length = #TEXT
  filter = function(keys, count)
    local kept, markers = 0, 0
    for i = 1, count do
      local key = keys[i]
      if sub(key, 1, length) == TEXT then
        kept = kept + 1
        if kept ~= i then keys[kept] = key end
      elseif is_marker(key) then
        markers = markers + 1
      end
    end
    return kept, markers
  end
else
  local matches
  if KIND == 'prefix' then
    local length = #TEXT
    matches = function(key) return sub(key, 1, length) == TEXT end
  elseif KIND == 'literal' then
    matches = function(key) return key == TEXT end
  elseif KIND == 'parts' then
    -- What stands between the stars, as Lua patterns, each found after the end of the one before.
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
  filter = function(keys, count)
    local kept, markers = 0, 0
    for i = 1, count do
      local key = keys[i]
      if is_marker(key) then
        markers = markers + 1
      elseif not matches or matches(key) then
        kept = kept + 1
        if kept ~= i then keys[kept] = key end
      end
    end
    return kept, markers
  end
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

-- A marker's value: whether its unit is done, '=' and the last key applied (a walk: the next key, '' at its end; false:
-- not known), counters, delta.
local function mark(marker, done, last, v, m, f, delta)
  call('SET', marker, pack(done, last, v, m, f, delta), 'PX', LIFE)
end
