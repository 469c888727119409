#!lua flags=allow-oom
-- Learns from the answers of one commit how large those of a model are.
-- KEYS  1 sizes (hash: endpoint and model -> '<mean packed bytes> <answers>')
-- ARGV  1 ms the hash lives on   2 most fields   then field, answers, their packed bytes ...
-- The mean runs: of ten thousand answers at most, so that it follows what changes.
for i = 3, #ARGV, 3 do
  local known = redis.call('HGET', KEYS[1], ARGV[i])
  if known or redis.call('HLEN', KEYS[1]) < tonumber(ARGV[2]) then
    local mean, seen = string.match(known or '0 0', '^(%d+) (%d+)$')
    local count, bytes = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local all = (tonumber(seen) or 0) + count
    local old = (tonumber(mean) or 0) * (all - count)
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f %.0f', (old + bytes) / all, math.min(all, 10000)))
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
