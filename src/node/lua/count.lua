skalds_bulk = function(_, first, last, acc)
  return (acc or 0) + last - first + 1
end
