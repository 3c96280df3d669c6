-- Follows an order to the one that it replaces, and counts both by status.
function each(key, acc)
  local order = redis.call('HMGET', key, 'status', 'total', 'replaces', 'customer')
  local status = order[1] or 'none'
  acc[status] = (acc[status] or 0) + 1
  acc.total = (acc.total or 0) + (tonumber(order[2]) or 0)
  if order[4] then
    acc['customer:' .. order[4]] = (acc['customer:' .. order[4]] or 0) + 1
  end
  return acc
end

function next(key, acc)
  local previous = redis.call('HGET', key, 'replaces')
  if not previous or acc.total > tonumber(args.limit) then
    return nil
  end
  return 'order:' .. previous
end
