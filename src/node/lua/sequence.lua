-- Units of a strict order: listed keys and walks.

-- One unit of a strict order; `following` names a walk's next key. Answers why this node cannot do it (nil: it has), and
-- the next key: '' at the end, false when it is not known. A walk's marker holds it, so that a second run goes the
-- same way.
local function one_key(key, tag, suffix, following)
  local marker = marker_of(tag, suffix)
  local seen = try('GET', marker)
  if type(seen) == 'table' then return seen.err end
  local m, f, after = matched, failed, false
  if seen then
    local v, m, f, _
    _, after, v, m, f, acc = unpack_all(seen)
    visited, matched, failed = visited + v, matched + m, failed + f
    if after or not following then return nil, after end
  else
    visited = visited + 1
    if call('EXISTS', key) == 1 then
      apply({key}, 1, 1)
    elseif following then
      skalds_fail(key, 'there is no such key')
    end
    if stopped then return nil, false end
  end
  if following then
    local ok, found = xpcall(function() return following(key, acc) end, where)
    if ok then after = found and tostring(found) or '' else skalds_fail(key, found) end
  end
  if ACCESS == 'w' and not seen then mark(marker, true, after, 1, matched - m, failed - f, acc) end
  return nil, after
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
  local after
  repeat
    why, after = one_key(key, tag, ':' .. string.format('%d', number + steps), next)
    if why or stopped then break end
    steps = steps + 1
    spent = spent + 4
    key = after and after ~= '' and after
    tag = key and tag_of(key)
  until not key or not tag or steps >= allowed or over()
  return pack(steps, visited, matched, failed, failures, why or false, key, acc)
end
