-- Counts hashes by their field `status`, and burns a little time on each key.
function each(key, acc)
  acc = acc or {}
  local spin = 0
  for i = 1, tonumber(args.spin) do spin = spin + i end
  local status = redis.call('HGET', key, 'status') or ''
  acc[status] = (acc[status] or 0) + 1
  return acc
end
