#!/usr/bin/env bash
# Train with N processes on this machine, as on N hosts:
#
#   launch/local.sh 2 -- --config=configs/quickstart.py
#   DEVICES=4 launch/local.sh 2 -- --config=configs/quickstart.py   # each with 4 fake CPU devices
#
# The words after -- are arguments of python -m anytime_jax.main. Process 0 prints to the terminal,
# the others to files in LOGS, whose last lines are shown if one fails. Each process gets an equal
# share of the GPUs, in order.
#
# Ctrl-C or SIGTERM reaches every process once: the run saves, and the same command resumes it. A
# second Ctrl-C kills. When one process fails, the others have GRACE seconds to end by themselves.
# When one is lost (ended by a signal), all are started again, at most RESTARTS times.
# Exit status: 0, or that of the first process that failed; 2 for bad input.
#
#   PYTHON   interpreter (default: python)
#   DEVICES  fake CPU devices of each process, for trials (default: the devices of the machine)
#   LOGS     directory of the logs (default: a new temporary one)
#   GRACE    seconds (default: 60)
#   RESTARTS number (default: 3)
set -u

fail() {
  echo "error: $*" >&2
  exit 2
}

count=${1:-}
[[ $count =~ ^[1-9][0-9]{0,2}$ && ${2:-} == -- ]] ||
  fail "give a number of processes, --, and the run: launch/local.sh 2 -- --config=FILE"
shift 2
python=${PYTHON:-python}
command -v "$python" >/dev/null || fail "PYTHON=$python is not a command: give an interpreter"
grace=${GRACE:-60}
[[ $grace =~ ^[0-9]+$ ]] || fail "GRACE=$grace: give a number of seconds"
restarts=${RESTARTS:-3}
[[ $restarts =~ ^[0-9]+$ ]] || fail "RESTARTS=$restarts: give a number"

if [[ -n ${DEVICES:-} ]]; then
  [[ $DEVICES =~ ^[1-9][0-9]*$ ]] || fail "DEVICES=$DEVICES: give a number"
  export JAX_PLATFORMS=cpu
  export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$DEVICES"
fi

gpus=()
if [[ ${JAX_PLATFORMS:-} != cpu ]]; then
  if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
  else
    for device in /dev/nvidia[0-9]*; do
      [[ -e $device ]] && gpus+=("${#gpus[@]}")
    done
  fi
fi
((${#gpus[@]} % count == 0)) ||
  fail "${#gpus[@]} GPUs cannot be divided among $count processes: set CUDA_VISIBLE_DEVICES"
share=$((${#gpus[@]} / count))

logs=${LOGS:-}
if ((count > 1)); then
  logs=${logs:-$(mktemp -d)}
  mkdir -p "$logs" || fail "LOGS=$logs cannot be created"
  echo "process 0 of $count prints here, the others to $logs" >&2
fi

pids=() statuses=() received=() forwarded='' deadline='' worst=0 port=''

# Signals are recorded here and forwarded below, once. Each process has a group of its own, so that a
# Ctrl-C reaches it from here alone.
trap 'received+=(INT)' INT
trap 'received+=(TERM)' TERM HUP
trap 'kill_all' EXIT

kill_all() {
  kill -KILL -- "${pids[@]/#/-}" 2>/dev/null
  wait
}

start() {
  if ((share && count > 1)); then
    local own=("${gpus[@]:$1*share:share}")
    CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${own[*]}")
    export CUDA_VISIBLE_DEVICES
  fi
  exec "$python" -m anytime_jax.main "${@:2}" \
    "--coordinator=localhost:$port" "--processes=$count" "--process=$1"
}

# Records the exit status of process I; if it failed, sets the deadline of the others.
record() {
  wait "${pids[$1]}" 2>/dev/null
  statuses[$1]=$?
  ((statuses[$1])) || return
  echo "process $1 of $count ended with status ${statuses[$1]}" >&2
  if (($1)); then tail -n 5 "$logs/process-$1.log" >&2; fi
  ((worst)) || worst=${statuses[$1]}
  deadline=${deadline:-$((SECONDS + grace))}
}

start_all() {
  local i
  port=$((20000 + RANDOM % 12000)) # below the ports of outgoing connections
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    port=$((20000 + RANDOM % 12000))
  done
  pids=() statuses=() deadline='' worst=0
  for ((i = 0; i < count; i++)); do
    set -m
    if ((i == 0)); then
      start "$i" "$@" </dev/null &
    else
      start "$i" "$@" </dev/null >>"$logs/process-$i.log" 2>&1 &
    fi
    pids+=($!)
    set +m
  done
}

# Waits until all processes have ended; forwards signals to them.
wait_for_all() {
  local i
  while true; do
    for i in "${!pids[@]}"; do
      [[ -n ${statuses[i]:-} ]] || kill -0 "${pids[i]}" 2>/dev/null || record "$i"
    done
    ((${#statuses[@]} < count)) || break
    if [[ -z $forwarded && ${#received[@]} -gt 0 ]]; then
      forwarded=${received[0]}
      kill "-$forwarded" "${pids[@]}" 2>/dev/null
    elif [[ ${#received[@]} -gt 1 && ${received[-1]} == INT ]]; then
      exit 130
    fi
    if [[ -n $deadline ]] && ((SECONDS >= deadline)); then
      echo "killing the others, $grace s after the first failure" >&2
      break
    fi
    sleep 0.2
  done
}

# Whether processes failed, each by a signal or because another one was lost (status 75).
was_lost() {
  local status
  for status in "${statuses[@]}"; do
    ((status == 0 || status == 75 || status > 128)) || return 1
  done
  ((worst))
}

for ((i = 1; i < count; i++)); do : >"$logs/process-$i.log"; done
while true; do
  start_all "$@"
  wait_for_all
  if [[ ${#received[@]} -gt 0 ]] || ! was_lost || ((restarts-- == 0)); then break; fi
  kill_all
  echo "a process was lost: all $count are started again" >&2
done
exit "$worst"
