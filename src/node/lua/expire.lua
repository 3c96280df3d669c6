local try, type, byte, floor = redis.pcall, type, string.byte, math.floor
local life, spread = args.ttl_millis + 0, args.ttl_millis * args.jitter_percent / 100
local only_if, emulate = args.only_if, args.emulate == '1'

-- A fraction from 0 to 1 that depends on the key alone: neighbours such as user:1 and user:2 fall far apart.
local function fraction(key)
  local hash = 5381
  for i = 1, #key do hash = (hash * 33 + byte(key, i)) % 4294967296 end
  local scattered = hash * 0.6180339887498949
  return scattered - floor(scattered)
end

-- Servers before 7.0 know no NX, LT and GT.
local function wanted(key, millis)
  local left = try('PTTL', key)
  if type(left) == 'table' then return left end
  if only_if == 'NX' then return left == -1 end
  if only_if == 'LT' then return left == -1 or millis < left end
  return left >= 0 and millis > left
end

skalds_bulk = function(keys, first, last, acc)
  acc = acc or 0
  for i = first, last do
    local key = keys[i]
    local millis = string.format('%.0f', life + (spread > 0 and floor(spread * fraction(key)) or 0))
    local done
    if only_if == '' then
      done = try('PEXPIRE', key, millis)
    elseif emulate then
      done = wanted(key, millis + 0)
      if done == true then done = try('PEXPIRE', key, millis) end
    else
      done = try('PEXPIRE', key, millis, only_if)
    end
    if done == 1 then
      acc = acc + 1
    elseif type(done) == 'table' then
      skalds_fail(key, done.err)
      if ARGV[5] == '1' then return acc end
    end
  end
  return acc
end
