#!lua flags=allow-oom
-- Removes marks of questions that have their outcome, or whose upload is given up.
-- KEYS  the marks
-- ARGV  1 chunk; or a batch, for all its chunks too
-- answer: how many were removed
local removed, within = 0, ARGV[1] .. '.'
for _, mark in ipairs(KEYS) do
  local holder = redis.call('GET', mark)
  if holder and (holder == ARGV[1] or string.sub(holder, 1, #within) == within) then
    removed = removed + redis.call('DEL', mark)
  end
end
return removed
