#!/usr/bin/env bash
# Trains with N processes on this machine, as N hosts would:
#
#   launch/local.sh 2 -- --config=configs/quickstart.py
#   DEVICES=4 launch/local.sh 2 -- --config=configs/quickstart.py   # each with 4 fake CPU devices
#
# What stands after -- goes to python -m anytime_jax.main. Process 0 speaks on the terminal; the
# others write to LOGS, whose last lines are shown if one breaks. GPUs are shared out, in order.
#
# Ctrl-C or SIGTERM reaches every process once: the run saves, and the same line goes on. A second
# Ctrl-C kills. When one process breaks, the others have GRACE seconds to end by themselves.
# Exit status: 0, or that of the first process that broke; 2 for bad input.
#
#   PYTHON   the interpreter (python)
#   DEVICES  fake CPU devices for each process, to try things out; by default what is there
#   LOGS     directory of the logs (a new one under the directory for temporary files)
#   GRACE    seconds (60)
set -u

complain() {
  echo "error: $*" >&2
  exit 2
}

count=${1:-}
[[ $count =~ ^[1-9][0-9]{0,2}$ && ${2:-} == -- ]] ||
  complain "give a number of processes, --, and the run: launch/local.sh 2 -- --config=FILE"
shift 2
python=${PYTHON:-python}
command -v "$python" >/dev/null || complain "there is no $python here: set PYTHON"
grace=${GRACE:-60}
[[ $grace =~ ^[0-9]+$ ]] || complain "GRACE=$grace: give seconds"

if [[ -n ${DEVICES:-} ]]; then
  [[ $DEVICES =~ ^[1-9][0-9]*$ ]] || complain "DEVICES=$DEVICES: give a number"
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
  complain "${#gpus[@]} GPUs cannot be shared out to $count processes: CUDA_VISIBLE_DEVICES names" \
    "those to use"
share=$((${#gpus[@]} / count))

port=$((20000 + RANDOM % 12000)) # below those that the system gives to outgoing connections
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
  port=$((20000 + RANDOM % 12000))
done

logs=${LOGS:-}
if ((count > 1)); then
  logs=${logs:-$(mktemp -d)}
  mkdir -p "$logs" || complain "LOGS=$logs cannot be made"
  echo "process 0 of $count speaks here, the others in $logs" >&2
fi

pids=() statuses=() asked=() told='' deadline='' worst=0

# Noted here and passed on below, once; each process has a group of its own, so that a Ctrl-C
# reaches it from here alone.
trap 'asked+=(INT)' INT
trap 'asked+=(TERM)' TERM HUP
trap 'kill -KILL -- "${pids[@]/#/-}" 2>/dev/null; wait' EXIT

start() {
  if ((share && count > 1)); then
    local mine=("${gpus[@]:$1*share:share}")
    CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${mine[*]}")
    export CUDA_VISIBLE_DEVICES
  fi
  exec "$python" -m anytime_jax.main "${@:2}" \
    "--coordinator=localhost:$port" "--processes=$count" "--process=$1"
}

# Notes how process I ended, and until when the others have time if it broke.
note() {
  wait "${pids[$1]}" 2>/dev/null
  statuses[$1]=$?
  ((statuses[$1])) || return
  echo "process $1 of $count ended with status ${statuses[$1]}" >&2
  if (($1)); then tail -n 5 "$logs/process-$1.log" >&2; fi
  ((worst)) || worst=${statuses[$1]}
  deadline=${deadline:-$((SECONDS + grace))}
}

for ((i = 0; i < count; i++)); do
  set -m
  if ((i == 0)); then
    start "$i" "$@" </dev/null &
  else
    start "$i" "$@" </dev/null >"$logs/process-$i.log" 2>&1 &
  fi
  pids+=($!)
  set +m
done

while true; do
  for i in "${!pids[@]}"; do
    [[ -n ${statuses[i]:-} ]] || kill -0 "${pids[i]}" 2>/dev/null || note "$i"
  done
  ((${#statuses[@]} < count)) || break
  if [[ -z $told && ${#asked[@]} -gt 0 ]]; then
    told=${asked[0]}
    kill "-$told" "${pids[@]}" 2>/dev/null
  elif [[ ${#asked[@]} -gt 1 && ${asked[-1]} == INT ]]; then
    exit 130
  fi
  if [[ -n $deadline ]] && ((SECONDS >= deadline)); then
    echo "killing the others, $grace s after the first broke" >&2
    break
  fi
  sleep 0.2
done
exit "$worst"
