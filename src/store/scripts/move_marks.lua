#!lua
-- Moves marks to whoever goes on with their questions, as far as they still name the one before.
-- KEYS  the marks
-- ARGV  1 who has them   2 who will
-- answer: how many were moved
local moved = 0
for _, mark in ipairs(KEYS) do
  if redis.call('GET', mark) == ARGV[1] then
    redis.call('SET', mark, ARGV[2])
    moved = moved + 1
  end
end
return moved
