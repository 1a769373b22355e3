#!/usr/bin/env bash
# Train on one host of launch/tpu_vm.sh; the arguments are those of python -m anytime_jax.main.
#
# When a process is lost (ended by a signal), those of the other hosts end within a minute with
# status 75, as all do when a bucket is out of reach. Each host then starts its own again, at most
# RESTARTS times, PAUSE seconds later, when all have ended. SIGTERM makes the run save and end.
set -uo pipefail

restarts=${RESTARTS:-10} stopped='' signalled='' status=0
trap 'stopped=yes signalled=yes; kill -TERM $!' TERM
echo $$ >run.pid

# Waits for the last command in the background; a signal ends `wait`, not the command.
await() {
  while true; do
    signalled=''
    wait $!
    status=$?
    [[ -n $signalled ]] || break
  done
}

while true; do
  .venv/bin/python -m anytime_jax.main --cluster "$@" &
  await
  if ((status != 75 && status <= 128)) || [[ -n $stopped ]] || ((restarts-- == 0)); then
    exit "$status"
  fi
  echo "a process or a bucket was lost (status $status): this host starts its own process again" \
    "in ${PAUSE:-60} s"
  sleep "${PAUSE:-60}" &
  await
  [[ -z $stopped ]] || exit 75
done
