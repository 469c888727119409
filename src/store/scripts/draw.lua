#!lua
-- Draws the numbers of one page's results from their run, lowest free number first, and notes each beside the page, so
-- that it can be given back. Asked again for the same page it answers the same.
-- KEYS  1 uploads   2 draws of the page
-- ARGV  1 batch hex   2 key prefix of all runs   3 attempt   4 ms the record lives on
--       then for each result: name (index.sample), kind, question, asking
-- kind: 'a' a new asking   'c' asked under a custom_id, which keeps its number   's' shares the answer: draws none
-- answer: nil if the upload has lapsed, else { prompts whose question came before, name, number, name, number, ... }
--
-- A bucket of questions is a hash: 'q' question -> 'next seen' (the lowest number never drawn; prompts that asked), and
-- 'c' asking -> 'number' or 'number holds'. Numbers given back stand in <bucket>:free, a sorted set of question and
-- number. An anonymous number is held by one batch, so below 'next' and not free is all there is to know of it.
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return nil end
local repeats, answer = 0, { '' }

local function tell(name, row)
  local kind = string.sub(row, 1, 1)
  local number = string.sub(row, kind == 'c' and 35 or 19)
  if string.sub(row, 2, 2) == '1' then repeats = repeats + 1 end
  answer[#answer + 1] = name
  answer[#answer + 1] = number
end

if redis.call('EXISTS', KEYS[2]) == 1 then
  local stored = redis.call('HGETALL', KEYS[2])
  for i = 1, #stored, 2 do
    if string.match(stored[i], '^%d') then tell(stored[i], stored[i + 1]) end
  end
  answer[1] = tostring(repeats)
  return answer
end

-- Few calls a result: this is where the time goes.
local questions, buckets = {}, {}
local function find(question, asking)
  local known = questions[question]
  if not known then
    local hash = ARGV[2] .. ARGV[3] .. ':' .. string.format('%02x', string.byte(question))
    if buckets[hash] == nil then buckets[hash] = redis.call('EXISTS', hash .. ':free') == 1 end
    local stored = redis.call('HMGET', hash, 'q' .. question, asking)
    local next, seen = string.match(stored[1] or '0 0', '^(%d+) (%d+)$')
    known = { hash = hash, next = tonumber(next), seen = tonumber(seen), freed = buckets[hash], named = {}, changed = {} }
    known.named[asking] = stored[2]
    questions[question] = known
  elseif known.named[asking] == nil then
    known.named[asking] = redis.call('HGET', known.hash, asking)
  end
  return known
end

local function lowest(question, known)
  if known.freed then
    local from, to = '[' .. question .. '\0\0\0\0', '[' .. question .. '\255\255\255\255'
    local member = redis.call('ZRANGEBYLEX', known.hash .. ':free', from, to, 'LIMIT', 0, 1)[1]
    if member then
      redis.call('ZREM', known.hash .. ':free', member)
      return (struct.unpack('>I4', string.sub(member, 17)))
    end
    known.freed = false
  end
  known.next = known.next + 1
  return known.next - 1
end

local function draw_named(question, known, asking)
  local held, holds = string.match(known.named[asking] or '', '^(%d+) ?(%d*)$')
  local now = held and held .. ' ' .. ((tonumber(holds) or 1) + 1) or tostring(lowest(question, known))
  known.named[asking], known.changed[asking] = now, now
  return held or now
end

local rows = { '@', ARGV[3] }
for i = 5, #ARGV, 4 do
  local name, kind, question, asking = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local sample = string.match(name, '%.(%d+)$')
  local field = kind == 'c' and 'c' .. asking .. (sample == '0' and '' or sample) or ''
  local known = find(question, field)
  local came_before = '0'
  if sample == '0' then
    if known.seen > 0 then came_before = '1' end
    known.seen = known.seen + 1
  end
  local number = sample
  if kind == 'c' then
    number = draw_named(question, known, field)
  elseif kind == 'a' then
    number = lowest(question, known)
  end
  rows[#rows + 1] = name
  rows[#rows + 1] = kind .. came_before .. question .. asking .. number
  tell(name, rows[#rows])
end

local time = redis.call('TIME')
local due = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])
for question, known in pairs(questions) do
  local fields = { 'q' .. question, known.next .. ' ' .. known.seen }
  for asking, value in pairs(known.changed) do
    fields[#fields + 1] = asking
    fields[#fields + 1] = value
  end
  redis.call('HSET', known.hash, unpack(fields)) -- a page has some hundred results, so this is bounded
end
for hash in pairs(buckets) do
  if redis.call('PEXPIRETIME', hash) < due then
    redis.call('PEXPIREAT', hash, due)
    redis.call('PEXPIREAT', hash .. ':free', due)
  end
end
for i = 1, #rows, 200 do
  redis.call('HSET', KEYS[2], unpack(rows, i, math.min(i + 199, #rows)))
end
answer[1] = tostring(repeats)
return answer
