#!lua flags=allow-oom
-- Counts a step that failed in a living worker: it weighs more than a claim that ran out because its process died.
-- KEYS  1 fence   2 chunk
-- ARGV  1 token   2 weight, in reclaims
if redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HINCRBY', KEYS[2], 'reclaims', ARGV[2])
end
return 1
