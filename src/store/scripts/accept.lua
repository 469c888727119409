#!lua
-- Makes a batch exist: all of it, or nothing if the upload's right to its pages is gone.
-- KEYS  1 uploads   2 batch   3 team index   4 open batches   5 delayed   6 chores   7 idempotency record   8 upload
--       9 bytes promised to all batches   10 open batches of the team
-- ARGV  1 batch hex   2 created ms   3 number of chunks   4 idempotency record or ''   5 its TTL ms   6 lock it replaces
--       7 ended ms or ''   8 retention ms   9 chore that settles its draws from a run, or ''
--       10 bytes promised to this one   11 what may be promised in all, or ''
--       12 open batches the team may have   13 pending results it may have   14 pending results of this batch
--       15 key prefix   16.. field, value of the batch
-- answer: 'ok', 'lost', 'locked' (the Idempotency-Key's lock is no longer ours), 'full', or, of a team that has enough in
--         work, 'batches <open>' or 'prompts <pending>'
if ARGV[4] ~= '' and redis.call('GET', KEYS[7]) ~= ARGV[6] then return 'locked' end
if ARGV[10] ~= '0' and ARGV[11] ~= '' then
  local promised = tonumber(redis.call('GET', KEYS[9]) or '0')
  if promised + tonumber(ARGV[10]) > tonumber(ARGV[11]) then return 'full' end
end
if ARGV[7] == '' then
  -- Counted from the batches themselves, of which a team has few: nothing to keep in step, nothing to put right.
  local open, pending = 0, 0
  for _, hex in ipairs(redis.call('ZRANGE', KEYS[10], 0, -1)) do
    local facts = redis.pcall('HMGET', ARGV[15] .. 'b:' .. hex, 'ended', 'total', 'succeeded', 'failed', 'canceled', 'expired')
    if facts.err or facts[1] or not facts[2] then
      redis.call('ZREM', KEYS[10], hex)
    else
      open = open + 1
      pending = pending + (tonumber(facts[2]) or 0)
      for i = 3, 6 do pending = pending - (tonumber(facts[i] or nil) or 0) end
    end
  end
  if open >= tonumber(ARGV[12]) then return 'batches ' .. open end
  if pending + tonumber(ARGV[14]) > tonumber(ARGV[13]) then return 'prompts ' .. math.max(pending, 0) end
end
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 'lost' end
local fields = {}
for i = 16, #ARGV do fields[#fields + 1] = ARGV[i] end
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
  redis.call('ZADD', KEYS[10], ARGV[2], ARGV[1])
else
  redis.call('ZADD', KEYS[6], tonumber(ARGV[7]) + tonumber(ARGV[8]), 'batch:' .. ARGV[1])
end
if ARGV[9] ~= '' then redis.call('ZADD', KEYS[6], now, ARGV[9]) end
if ARGV[4] ~= '' then redis.call('SET', KEYS[7], ARGV[4], 'PX', ARGV[5]) end
redis.call('DEL', KEYS[8])
redis.call('ZREM', KEYS[6], 'upload:' .. ARGV[1])
return 'ok'
