#!lua flags=allow-oom
-- Takes one chunk to work on: expired claims go back, due chunks become ready, and one head of a lane is popped.
-- KEYS  1 delayed   2 claimed   3 lanes   4 chunks under way   5 shares of the teams
-- ARGV  1 key prefix   2 fresh dispatch token   3 lease ms   4 skew ms   5 dead-letter key
--       6.. accounts that are passed by: the caller holds no permit of theirs
-- answer: { chunk id or '', now ms, reclaims, lane, chunks moved to the dead letters }
-- A lane is one team's at one account, `<account>:asks:<team>`, or what it joins, `:joins:<team>`: as many as an operator made,
-- for all of them are looked at. Of heads to be sent the one of the team with the fewest prompts under way goes first, then
-- the most urgent one. Three of four claims look at heads under way first (polls and harvests), the fourth at those to be
-- sent: so neither waits for ever, however many of the other there are.
-- Whatever stands in one chunk's record, it must not stop the claims of all the others.
local prefix, token, lease, dead = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])

-- A ready chunk's score is its deadline, moved by this much for one under way (back) or of low priority (on).
local APART = 1e13
local LOOK, LOOK_IDLE = 8, 128 -- chunks under way looked at in a claim, and in one that finds nothing to do
local KEPT = 40 * 86400 * 1000

local function entry(id, prompts, team) return id .. ' ' .. (tonumber(prompts or nil) or 0) .. ' ' .. team end

local function leave(id, prompts, team)
  if redis.call('SREM', KEYS[4], entry(id, prompts, team)) == 0 then return end
  if redis.call('HINCRBY', KEYS[5], team, -prompts) < 0 then redis.call('HSET', KEYS[5], team, 0) end
end

local function team_of(lane) return string.match(lane, '^[^:]*:[^:]*:(.*)$') or '' end

local buried = 0
local function make_ready(id)
  local facts = redis.pcall('HMGET', prefix .. 'k:' .. id, 'lane_id', 'deadline', 'state', 'priority', 'prompts')
  if facts.err or not facts[1] then
    redis.call('LPUSH', dead, 'chunk:' .. id)
    redis.call('LTRIM', dead, 0, 999)
    buried = buried + 1
    return
  end
  local score = tonumber(facts[2] or nil) or 0
  if facts[3] ~= 'planned' then
    score = score - APART
  else
    if facts[4] == 'low' then score = score + APART end
    leave(id, tonumber(facts[5] or nil) or 0, team_of(facts[1]))
  end
  redis.call('ZADD', prefix .. 'ready:' .. facts[1], score, id)
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

-- Nobody tells when a chunk under way is settled, or waits where it was: it is seen here, some drawn at random at each
-- claim. Each is claimed for a poll now and then, so a round of polls sees all of them; and a look writes nothing.
local function look(count)
  for _, member in ipairs(redis.call('SRANDMEMBER', KEYS[4], count)) do
    local id, prompts, team = string.match(member, '^(%S+) (%d+) (.*)$')
    local state = redis.pcall('HGET', prefix .. 'k:' .. id, 'state')
    local waits = state == 'planned' and not redis.call('ZSCORE', KEYS[2], id)
    if type(state) ~= 'string' or state == 'settled' or state == 'joining' or waits then leave(id, tonumber(prompts), team) end
  end
end
look(LOOK)

local full, shares = {}, {}
for i = 6, #ARGV do full[ARGV[i]] = true end
local told = redis.call('HGETALL', KEYS[5])
for i = 1, #told, 2 do shares[told[i]] = tonumber(told[i + 1]) end

local function before(one, other)
  if not other then return true end
  if one.share ~= other.share then return one.share < other.share end
  return one.score < other.score
end
local tended, sent
for _, lane in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local head = redis.call('ZRANGE', prefix .. 'ready:' .. lane, 0, 0, 'WITHSCORES')
  if not head[1] then
    redis.call('SREM', KEYS[3], lane)
  elseif not full[string.match(lane, '^[^:]*')] then
    local one = { id = head[1], lane = lane, score = tonumber(head[2]), share = 0 }
    -- What is to be sent may stand behind what is under way.
    if one.score < 0 then
      if before(one, tended) then tended = one end
      local next = redis.call('ZRANGEBYSCORE', prefix .. 'ready:' .. lane, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      one = next[1] and { id = next[1], lane = lane, score = tonumber(next[2]) }
    end
    if one then
      one.share = shares[team_of(lane)] or 0
      if before(one, sent) then sent = one end
    end
  end
end
local best = tended or sent
if sent and string.byte(token) % 4 == 0 then best = sent end
if not best then
  look(LOOK_IDLE)
  if redis.call('EXISTS', KEYS[4]) == 0 then -- whatever damage there was, nobody has anything under way
    for team, share in pairs(shares) do
      if share ~= 0 then redis.call('HSET', KEYS[5], team, 0) end
    end
  end
  return { '', now, 0, '', buried }
end
redis.call('ZREM', prefix .. 'ready:' .. best.lane, best.id)
redis.call('ZADD', KEYS[2], now + lease, best.id)
redis.call('SET', prefix .. 'k:' .. best.id .. ':fence', token)
local facts = redis.pcall('HMGET', prefix .. 'k:' .. best.id, 'reclaims', 'prompts', 'state')
local prompts, team = not facts.err and tonumber(facts[2] or nil) or 0, team_of(best.lane)
-- What another team asks is none of this one's share.
local joins = not facts.err and facts[3] == 'joining'
if not joins and redis.call('SADD', KEYS[4], entry(best.id, prompts, team)) == 1 then
  redis.call('HINCRBY', KEYS[5], team, prompts)
  redis.call('PEXPIRE', KEYS[5], KEPT)
end
return { best.id, now, not facts.err and tonumber(facts[1] or nil) or 0, best.lane, buried }
