#!lua flags=allow-oom
-- One step in a chunk's life, field by field, by the dispatch that holds it.
-- KEYS  1 chunk   2 fence   3 batch   4 claimed   5 delayed
-- ARGV  1 chunk id   2 token   3 states it may come from, comma-separated   4 state it goes to
--       5 'hold', or the delay in ms after which it may be claimed again   6 skew ms
--         (at once, if the batch was cancelled meanwhile and all is well: a planned or asked chunk has only to be settled, a
--         running one only to be cancelled; a doubt, a back-off and an adopted batch keep their wait)
--       7 'asking' if this step leads to a paid call: refused when the batch wants no more   8.. field, value
-- answer: 'ok', 'lost' (another dispatch has it), 'ending' (the batch was cancelled), or the state it was found in
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 'lost' end
local state = redis.call('HGET', KEYS[1], 'state')
if not state or not string.find(',' .. ARGV[3] .. ',', ',' .. state .. ',', 1, true) then return state or 'gone' end
local cancel = redis.call('HGET', KEYS[3], 'cancel') == '1'
if ARGV[7] == 'asking' and cancel then return 'ending' end

local counter = { planned = 'c_planned', submitting = 'c_submitting', in_doubt = 'c_submitting',
                  asking = 'c_running', running = 'c_running', harvested = 'c_running' }
if counter[state] ~= counter[ARGV[4]] and redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('HINCRBY', KEYS[3], counter[state], -1)
  redis.call('HINCRBY', KEYS[3], counter[ARGV[4]], 1)
end
redis.call('HSET', KEYS[1], 'state', ARGV[4])
if ARGV[5] ~= 'hold' then redis.call('HSET', KEYS[1], 'reclaims', 0) end
for i = 8, #ARGV, 2 do
  if ARGV[i] == 'reported' and redis.call('EXISTS', KEYS[3]) == 1 then
    local before = tonumber(redis.call('HGET', KEYS[1], 'reported') or '0')
    redis.call('HINCRBY', KEYS[3], 'reported', tonumber(ARGV[i + 1]) - before)
  end
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
if ARGV[5] ~= 'hold' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[6])
  local delay = tonumber(ARGV[5])
  if cancel then
    local facts = redis.call('HMGET', KEYS[1], 'cancel_sent', 'fails', 'adopted')
    local well = facts[1] ~= '1' and (facts[2] or '0') == '0' and not facts[3]
    if ARGV[4] == 'planned' or ARGV[4] == 'asking' or (ARGV[4] == 'running' and well) then delay = 0 end
  end
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[4], ARGV[1])
  redis.call('ZADD', KEYS[5], now + delay, ARGV[1])
end
return 'ok'
