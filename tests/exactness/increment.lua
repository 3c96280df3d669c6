-- Adds one to each key (nothing at all with by=0), and burns a little time on it.
function each(key, acc)
  local spin = 0
  for i = 1, tonumber(args.spin) do spin = spin + i end
  if args.by ~= '0' then redis.call('INCRBY', key, 1) end
  return (acc or 0) + 1
end
