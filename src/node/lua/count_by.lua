local try, type = redis.pcall, type
local field = args.field
skalds_bulk = function(keys, first, last, acc)
  acc = acc or {}
  for i = first, last do
    local value = try('HGET', keys[i], field)
    local count = acc[value]
    if count then
      acc[value] = count + 1
    elseif not value then
      acc[''] = (acc[''] or 0) + 1
    elseif type(value) == 'table' then
      skalds_fail(keys[i], value.err)
      if ARGV[5] == '1' then return acc end
    else
      acc[value] = 1
    end
  end
  return acc
end
