local try, type, tonumber = redis.pcall, type, tonumber
local find = string.find
local field = args.field
skalds_bulk = function(keys, first, last, acc)
  acc = acc or 0
  for i = first, last do
    local value = try('HGET', keys[i], field)
    if value then
      -- tonumber alone would also take hexadecimal, "inf", "nan" and spaces around.
      local number = type(value) == 'string' and find(value, '^[+-]?[%d.]+[eE]?[+-]?%d*$') and tonumber(value)
      if number and number - number == 0 then
        acc = acc + number
      else
        skalds_fail(keys[i], value.err or 'the field ' .. field .. ' holds no number: ' .. value)
        if ARGV[5] == '1' then return acc end
      end
    end
  end
  return acc
end
