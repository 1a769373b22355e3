#!/usr/bin/env bash
# Trains in one pod of launch/jobset.yaml; the arguments go to python -m anytime_jax.main.
#
# A pod that has to go is told by SIGTERM, at which the run saves and ends with status 0, as at its
# stop. Here that is status 143, so that the job counts as failed and the JobSet starts it again.
set -uo pipefail

asked='' woken=''
trap 'asked=yes woken=yes; kill -TERM $!' TERM

"${PYTHON:-python}" -m anytime_jax.main "$@" &
while true; do
  woken=''
  wait $!
  status=$?
  [[ -n $woken ]] || break # a signal ends the wait, not the run
done

if [[ -n $asked && $status == 0 ]]; then
  exit 143
fi
exit "$status"
