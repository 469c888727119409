#!lua flags=allow-oom
-- Gives numbers of a run back: what a page drew for results that came to nothing. Doing it twice changes nothing.
-- KEYS  1 draws of the page   2 sealed pages of its batch
-- ARGV  1 key prefix of all runs   2 and on, one of:
--         'these', names ...   a commit: the outcome of these results is no success
--         'failed', page       an accepted batch: the results that accept noted as failed; a sealed page needs its
--                              draws no more
--         'all'                a broken upload: it drew nothing and asked nothing
-- What is in a bucket and in a row: draw.lua. A number is free once nobody holds it; a success never lets go of it.
local attempt = redis.call('HGET', KEYS[1], '@')
if not attempt then
  if ARGV[2] ~= 'these' then redis.call('DEL', KEYS[1]) end -- nothing was drawn: at most failures were noted
  return 0
end
local unasked = ARGV[2] == 'all'
local touched, freed = {}, {}

local function give_back(name, row)
  redis.call('HDEL', KEYS[1], name)
  local kind, question = string.sub(row, 1, 1), string.sub(row, 3, 18)
  local hash = ARGV[1] .. attempt .. ':' .. string.format('%02x', string.byte(question))
  touched[question] = hash
  local number, sample = tonumber(string.sub(row, kind == 'c' and 35 or 19)), string.match(name, '%.(%d+)$')
  local next, seen = string.match(redis.call('HGET', hash, 'q' .. question) or '0 0', '^(%d+) (%d+)$')
  local free = kind ~= 's' and number < tonumber(next)
  if kind == 'c' then
    local asking = 'c' .. string.sub(row, 19, 34) .. (sample == '0' and '' or sample)
    local held, holds = string.match(redis.call('HGET', hash, asking) or '', '^(%d+) ?(%d*)$')
    if tonumber(held) ~= number then
      free = false -- the record died meanwhile, and was begun anew
    elseif (tonumber(holds) or 1) > 1 then
      free = false
      redis.call('HSET', hash, asking, held .. ' ' .. (holds - 1))
    else
      redis.call('HDEL', hash, asking)
    end
  end
  if free then
    redis.call('ZADD', hash .. ':free', 0, question .. struct.pack('>I4', number))
    freed[hash] = true
  end
  if unasked and sample == '0' and tonumber(seen) > 0 then
    redis.call('HSET', hash, 'q' .. question, next .. ' ' .. (seen - 1))
  end
end

local function by_name(name)
  local row = redis.call('HGET', KEYS[1], name)
  if row then give_back(name, row) end
end

if ARGV[2] == 'these' then
  for i = 3, #ARGV do by_name(ARGV[i]) end
elseif ARGV[2] == 'failed' then
  for _, mark in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(mark, 1, 1) == '!' then
      redis.call('HDEL', KEYS[1], mark)
      by_name(string.sub(mark, 2))
    end
  end
  if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 1 then redis.call('DEL', KEYS[1]) end
else
  local rows = redis.call('HGETALL', KEYS[1])
  for i = 1, #rows, 2 do
    if string.match(rows[i], '^%d') then give_back(rows[i], rows[i + 1]) end
  end
  redis.call('DEL', KEYS[1])
end

-- What is free dies with its bucket.
for hash in pairs(freed) do redis.call('PEXPIREAT', hash .. ':free', redis.call('PEXPIRETIME', hash)) end
if not unasked then return 1 end
for question, hash in pairs(touched) do
  local free = hash .. ':free'
  local next, seen = string.match(redis.call('HGET', hash, 'q' .. question) or '', '^(%d+) (%d+)$')
  if seen == '0' then
    -- Nobody asks it, so nobody asked: forgotten, once all its numbers are back (a prompt's samples span pages).
    local from, to = '[' .. question .. '\0\0\0\0', '[' .. question .. '\255\255\255\255'
    if redis.call('ZLEXCOUNT', free, from, to) == tonumber(next) then
      redis.call('ZREMRANGEBYLEX', free, from, to)
      redis.call('HDEL', hash, 'q' .. question)
    end
  end
end
return 1
