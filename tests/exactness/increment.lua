-- Adds one to each key, and burns a little time on it.
function each(key, acc)
  local spin = 0
  for i = 1, tonumber(args.spin) do spin = spin + i end
  redis.call('INCRBY', key, 1)
  return (acc or 0) + 1
end
