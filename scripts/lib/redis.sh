# Read by scripts/backup and scripts/restore, which define fail(). How to speak to the Redis of a URL.

# Turns `%40` into `@`.
decoded() { printf '%b' "${1//%/\\x}"; }

# Sets the array `redis` to a redis-cli for the URL $1; the password goes into the environment, where `ps` does not show it.
redis_of() {
  local url=$1 rest user='' password='' query='' host port db
  unset REDISCLI_AUTH
  redis=(redis-cli --no-auth-warning)
  case $url in
    unix://* | redis+unix://*)
      rest=${url#*://}
      [[ $rest == *\?* ]] && query=${rest#*\?}
      local pair
      local -a pairs
      IFS='&' read -ra pairs <<<"$query"
      for pair in "${pairs[@]}"; do
        case $pair in
          db=*) redis+=(-n "${pair#*=}") ;;
          user=*) user=${pair#*=} ;;
          pass=*) password=${pair#*=} ;;
        esac
      done
      redis+=(-s "$(decoded "${rest%%\?*}")")
      ;;
    redis://* | rediss://*)
      [[ $url == rediss://* ]] && redis+=(--tls)
      rest=${url#*://}
      rest=${rest%%[?#]*}
      if [[ $rest == *@* ]]; then
        user=${rest%@*}
        rest=${rest##*@}
        if [[ $user == *:* ]]; then
          password=${user#*:}
          user=${user%%:*}
        fi
      fi
      db=''
      if [[ $rest == */* ]]; then
        db=${rest#*/}
        rest=${rest%%/*}
      fi
      port=6379
      if [[ $rest =~ ^(\[.*\]|[^:]*):([0-9]+)$ ]]; then
        host=${BASH_REMATCH[1]} port=${BASH_REMATCH[2]}
      else
        host=$rest
      fi
      host=${host#[}
      host=${host%]}
      redis+=(-h "${host:-127.0.0.1}" -p "$port")
      [[ -n $db ]] && redis+=(-n "$db")
      ;;
    *) fail "the URL of a Redis begins with redis://, rediss:// or unix://" ;;
  esac
  [[ -n $user ]] && redis+=(--user "$(decoded "$user")")
  if [[ -n $password ]]; then
    REDISCLI_AUTH=$(decoded "$password")
    export REDISCLI_AUTH
  fi
}

# One command at `redis`; what Redis refuses is a failure here too.
ask() {
  local said
  said=$("${redis[@]}" -e "$@" 2>&1) || fail "redis does not do $1: $said"
  printf '%s\n' "$said"
}

# One figure of INFO at `redis`: ask_info SECTION NAME.
ask_info() {
  local line
  while IFS=: read -r line value; do
    [[ $line == "$2" ]] && printf '%s\n' "${value%$'\r'}" && return
  done < <(ask INFO "$1")
  fail "this redis does not say $2: it is older than 7.0"
}

# Waits for what `redis` loads at its start.
answers() {
  local said='' n
  for ((n = 0; n < 36000; n++)); do
    said=$("${redis[@]}" PING 2>&1) || true
    [[ $said == PONG ]] && return
    [[ -z ${server:-} ]] || kill -0 "$server" 2>/dev/null || fail "redis-server ended at its start; see its log above"
    sleep 0.1
  done
  fail "redis does not answer: $said"
}

# Sets `keys`: how many a dump holds; fails if it is not whole.
check_dump() {
  local said
  said=$(redis-check-rdb "$1" 2>&1) || fail "$1 is no whole dump of a redis: $(grep -m 1 -i error -A 1 <<<"$said" | tail -n 1)"
  [[ $said =~ \[info\]\ ([0-9]+)\ keys\ read ]] || fail "redis-check-rdb says nothing of keys: $said"
  keys=${BASH_REMATCH[1]}
}

# Keys of `redis` that live for ever, in all its databases.
lasting() {
  local line sum=0
  while read -r line; do
    [[ $line =~ keys=([0-9]+),expires=([0-9]+) ]] && sum=$((sum + BASH_REMATCH[1] - BASH_REMATCH[2]))
  done < <(ask INFO keyspace)
  printf '%s\n' "$sum"
}
