#!lua flags=no-writes,allow-oom
-- One look at a batch, all of it at one moment: what it says of itself, and what its chunks and pages say.
-- KEYS  1 batch   2 delayed   3 claimed   4 lanes   5 seal queue   6 sealed pages   7 open batches   8 chores
-- ARGV  1 batch hex   2 key prefix   3 first chunk   4 chunks to look at most   5 findings of a kind to tell at most
--       6 skew ms
-- answer: JSON, see store/reconcile.rs. Where not all chunks were looked at, only what is told of each one counts.
local hex, prefix, from, most, bound = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function int(text)
  local number = tonumber(text or nil)
  return number and number == math.floor(number) and math.abs(number) < 2 ^ 53 and number or nil
end

local said = redis.pcall('HGETALL', KEYS[1])
if said.err then return cjson.encode({ exists = true, unreadable = true }) end
local facts = {}
for i = 1, #said, 2 do facts[said[i]] = said[i + 1] end
local look = {
  exists = #said > 0,
  ended = facts.ended ~= nil,
  open = redis.call('ZSCORE', KEYS[7], hex) and true or false,
  chore = redis.call('ZSCORE', KEYS[8], 'batch:' .. hex) and true or false,
}
if #said == 0 or facts.ended then return cjson.encode(look) end

local next_chunk, pages = int(facts.next_chunk), int(facts.pages)
if not next_chunk or not pages or not int(facts.total) then return cjson.encode({ exists = true, unreadable = true }) end
local last = math.min(next_chunk, from + most) - 1
look.next = last + 1
look.whole = from == 0 and last + 1 == next_chunk
look.cancel = facts.cancel == '1'
local time = redis.call('TIME')
look.overdue = time[1] * 1000 + math.floor(time[2] / 1000) + int(ARGV[6]) - (int(facts.deadline) or 0)
look.pending = int(facts.total)
for _, name in ipairs({ 'succeeded', 'failed', 'canceled', 'expired' }) do
  look.pending = look.pending - (int(facts[name]) or 0)
end

local counter = { planned = 'c_planned', submitting = 'c_submitting', in_doubt = 'c_submitting', asking = 'c_running',
                  running = 'c_running', harvested = 'c_running', settled = 'c_settled', joining = false }
local counts = { c_planned = 0, c_submitting = 0, c_running = 0, c_settled = 0 }
local told = {}
local function tell(kind, number)
  told[kind] = told[kind] or {}
  if #told[kind] < bound then table.insert(told[kind], number) end
end

-- Which pages live chunks may still touch, as spans; a chunk that does not say may touch any.
local lanes = {}
local spans, anywhere, live, results, measured = {}, false, 0, 0, true
for n = from, last do
  local id = hex .. '.' .. n
  local chunk = redis.pcall('HMGET', prefix .. 'k:' .. id, 'state', 'lane_id', 'prompts', 'wait', 'results', 'first', 'last',
                           'joins')
  local state = not chunk.err and chunk[1]
  if chunk.err or (state and counter[state] == nil) or (not state and redis.call('EXISTS', prefix .. 'k:' .. id) == 1) then
    tell('unreadable', n)
    anywhere, measured = true, false
  elseif state then -- else it is a number that was drawn and not used
    -- What others ask, or asked, is none of the batch's own.
    local name = not chunk[8] and counter[state]
    if name then counts[name] = counts[name] + 1 end
    if state ~= 'settled' then
      live = live + 1
      if chunk[4] and chunk[4] ~= '' then
        local reason = 'w:' .. chunk[4]
        counts[reason] = (counts[reason] or 0) + (int(chunk[3]) or 0)
      end
      if int(chunk[5]) then results = results + int(chunk[5]) else measured = false end
      local low, high = int(chunk[6]), int(chunk[7])
      if low and high then table.insert(spans, { low, high }) else anywhere = true end
      if not chunk[2] then
        tell('unreadable', n)
      else
        local lane = lanes[chunk[2]] or { numbers = {}, ids = {} }
        lanes[chunk[2]] = lane
        table.insert(lane.numbers, n)
        table.insert(lane.ids, id)
      end
    end
  end
end
-- A lane's chunks are looked for in one go: this is where the time went.
for name, lane in pairs(lanes) do
  local claimed = redis.call('ZMSCORE', KEYS[3], unpack(lane.ids))
  local delayed = redis.call('ZMSCORE', KEYS[2], unpack(lane.ids))
  local ready = redis.pcall('ZMSCORE', prefix .. 'ready:' .. name, unpack(lane.ids))
  local known = redis.call('SISMEMBER', KEYS[4], name) == 1
  for i, n in ipairs(lane.numbers) do
    local places = (claimed[i] and 1 or 0) + (delayed[i] and 1 or 0) + (ready[i] and 1 or 0)
    if places == 0 then tell('lost', n) end
    if places > 1 then tell('twice', n) end
    if ready[i] and not known then tell('laneless', n) end
  end
end
look.told = told
if not look.whole then return cjson.encode(look) end

look.live = live
if measured then look.results = results end
look.wrong = {}
for name, value in pairs(facts) do
  local ours = counts[name] or (string.sub(name, 1, 2) == 'w:' and 0)
  if ours and int(value) ~= ours then look.wrong[name] = { int(value) or 0, ours } end
end
for name, ours in pairs(counts) do
  if not facts[name] and ours ~= 0 then look.wrong[name] = { 0, ours } end
end

local sealed = {}
local names = redis.pcall('HKEYS', KEYS[6])
if names.err then return cjson.encode({ exists = true, unreadable = true }) end
for _, page in ipairs(names) do sealed[page] = true end
look.sealed = #names == pages
if not anywhere then
  table.sort(spans, function(a, b) return a[1] < b[1] end)
  local at, page = 1, 0
  while page < pages do
    if spans[at] and spans[at][1] <= page then
      page = math.max(page, spans[at][2] + 1)
      at = at + 1
    else
      if not sealed[tostring(page)] and not redis.call('ZSCORE', KEYS[5], hex .. ':' .. page) then tell('page', page) end
      page = page + 1
    end
  end
end
return cjson.encode(look)
