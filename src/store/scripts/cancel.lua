#!lua flags=allow-oom
-- Asks a batch to stop, and wakes its chunks that wait for a time. Chunks in a worker's hands see it at their next step.
-- KEYS  1 batch   2 delayed
-- ARGV  1 batch hex   2 key prefix
-- answer: 'ok', 'ended', or 'gone'
if redis.call('EXISTS', KEYS[1]) == 0 then return 'gone' end
if redis.call('HEXISTS', KEYS[1], 'ended') == 1 then
  return redis.call('HGET', KEYS[1], 'cancel') == '1' and 'ok' or 'ended'
end
if redis.call('HGET', KEYS[1], 'cancel') == '1' then return 'ok' end
redis.call('HSET', KEYS[1], 'cancel', 1)
for n = 0, tonumber(redis.call('HGET', KEYS[1], 'next_chunk') or '0') - 1 do
  local id = ARGV[1] .. '.' .. n
  -- A doubt keeps its pause: what was created a moment ago may not be listed yet.
  local state = redis.pcall('HGET', ARGV[2] .. 'k:' .. id, 'state')
  if type(state) == 'string' and state ~= 'settled' and state ~= 'in_doubt' then redis.call('ZADD', KEYS[2], 'XX', 0, id) end
end
return 'ok'
