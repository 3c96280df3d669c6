-- Stands before the job's text, on the same line as its first one (so this file must stay free of comments inside
-- its code): the names that the text may define, and what the loop after it needs even if the text shadows it.
local skalds_globals = _G
local args = #ARGV[2] > 0 and cmsgpack.unpack(ARGV[2]) or {}
local each, merge, finish, skalds_bulk, skalds_fail
local next = next
