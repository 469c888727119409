#!lua flags=allow-oom
-- Takes one chunk to work on: expired claims go back, due chunks become ready, the most urgent head of a lane is popped.
-- KEYS  1 delayed   2 claimed   3 lanes
-- ARGV  1 key prefix   2 fresh dispatch token   3 lease ms   4 skew ms   5 dead-letter key
--       6.. accounts that are passed by: the caller holds no permit of theirs
-- answer: { chunk id or '', now ms, reclaims, lane, chunks moved to the dead letters }
-- Whatever stands in one chunk's record, it must not stop the claims of all the others.
local prefix, token, lease, dead = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])

local buried = 0
local function make_ready(id)
  local facts = redis.pcall('HMGET', prefix .. 'k:' .. id, 'lane_id', 'deadline')
  if facts.err or not facts[1] then
    redis.call('LPUSH', dead, 'chunk:' .. id)
    redis.call('LTRIM', dead, 0, 999)
    buried = buried + 1
    return
  end
  redis.call('ZADD', prefix .. 'ready:' .. facts[1], tonumber(facts[2] or nil) or 0, id)
  redis.call('SADD', KEYS[3], facts[1])
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 64)) do
  redis.call('ZREM', KEYS[2], id)
  redis.call('DEL', prefix .. 'k:' .. id .. ':fence')
  if redis.call('EXISTS', prefix .. 'k:' .. id) == 1 then
    redis.pcall('HINCRBY', prefix .. 'k:' .. id, 'reclaims', 1)
  end
  make_ready(id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 256)) do
  redis.call('ZREM', KEYS[1], id)
  make_ready(id)
end

local full = {}
for i = 6, #ARGV do full[ARGV[i]] = true end
local best, best_lane, best_score
for _, lane in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local head = redis.call('ZRANGE', prefix .. 'ready:' .. lane, 0, 0, 'WITHSCORES')
  if not head[1] then
    redis.call('SREM', KEYS[3], lane)
  elseif not full[string.match(lane, '^[^:]*')] and (not best or tonumber(head[2]) < best_score) then
    best, best_lane, best_score = head[1], lane, tonumber(head[2])
  end
end
if not best then return { '', now, 0, '', buried } end
redis.call('ZREM', prefix .. 'ready:' .. best_lane, best)
redis.call('ZADD', KEYS[2], now + lease, best)
redis.call('SET', prefix .. 'k:' .. best .. ':fence', token)
local reclaims = redis.pcall('HGET', prefix .. 'k:' .. best, 'reclaims')
return { best, now, type(reclaims) == 'string' and tonumber(reclaims) or 0, best_lane, buried }
