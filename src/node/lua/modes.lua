-- The end: picks the mode.

local function protected(action)
  local ok, value = xpcall(action, where)
  return pack(ok, value)
end

local modes = {
  forget = forget, foreign = foreign, slots = slots, groups = groups, part = part, scan = scan, keys = keys_of_slots, existing = existing, write = write,
  pages = pages, ordered = ordered, walk = walk,
  defines = function()
    local is = function(value) return type(value) == 'function' end
    return pack(is(each) or is(skalds_bulk), is(merge), is(finish), is(next) and next ~= _G.next)
  end,
  merge = function()
    return protected(function()
      local merged = unpack_all(ARGV[FIRST])
      for i = FIRST + 1, #ARGV do merged = merge(merged, (unpack_all(ARGV[i]))) end
      return merged
    end)
  end,
  finish = function()
    return protected(function()
      local value = unpack_all(ARGV[FIRST])
      if finish then return finish(value) end
      return value
    end)
  end,
}
-- Last in every answer: how long it took by the script's own clock, in microseconds.
return modes[MODE]() .. pack(clock and (clock() - started) * 1e6 or false)
end
