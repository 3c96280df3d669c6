local call, unpack = redis.call, unpack
skalds_bulk = function(keys, first, last, acc)
  acc = acc or 0
  for from = first, last, 1000 do
    acc = acc + call('UNLINK', unpack(keys, from, from + 999 < last and from + 999 or last))
  end
  return acc
end
