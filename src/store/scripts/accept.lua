#!lua
-- Makes a batch exist: all of it, or nothing if the upload's right to its pages is gone.
-- KEYS  1 uploads   2 batch   3 team index   4 open batches   5 delayed   6 chores   7 idempotency record   8 upload
--       9 bytes promised to all batches
-- ARGV  1 batch hex   2 created ms   3 number of chunks   4 idempotency record or ''   5 its TTL ms   6 lock it replaces
--       7 ended ms or ''   8 retention ms   9 chore that settles its draws from a run, or ''
--       10 bytes promised to this one   11 what may be promised in all, or ''   12.. field, value of the batch
-- answer: 'ok', 'lost', 'locked' (the Idempotency-Key's lock is no longer ours), or 'full'
if ARGV[4] ~= '' and redis.call('GET', KEYS[7]) ~= ARGV[6] then return 'locked' end
if ARGV[10] ~= '0' and ARGV[11] ~= '' then
  local promised = tonumber(redis.call('GET', KEYS[9]) or '0')
  if promised + tonumber(ARGV[10]) > tonumber(ARGV[11]) then return 'full' end
end
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 'lost' end
local fields = {}
for i = 12, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('HSET', KEYS[2], 'next_chunk', ARGV[3], unpack(fields))
if ARGV[10] ~= '0' then
  redis.call('HSET', KEYS[2], 'reserved', ARGV[10])
  redis.call('INCRBY', KEYS[9], ARGV[10])
end
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for n = 0, tonumber(ARGV[3]) - 1 do
  redis.call('ZADD', KEYS[5], now, ARGV[1] .. '.' .. n)
end
if ARGV[7] == '' then
  redis.call('ZADD', KEYS[4], ARGV[2], ARGV[1])
else
  redis.call('ZADD', KEYS[6], tonumber(ARGV[7]) + tonumber(ARGV[8]), 'batch:' .. ARGV[1])
end
if ARGV[9] ~= '' then redis.call('ZADD', KEYS[6], now, ARGV[9]) end
if ARGV[4] ~= '' then redis.call('SET', KEYS[7], ARGV[4], 'PX', ARGV[5]) end
redis.call('DEL', KEYS[8])
redis.call('ZREM', KEYS[6], 'upload:' .. ARGV[1])
return 'ok'
