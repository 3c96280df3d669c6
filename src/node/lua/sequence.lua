-- Units of a strict order: listed keys and walks.

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
