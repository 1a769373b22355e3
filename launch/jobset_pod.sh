#!/usr/bin/env bash
# Train in one pod of launch/jobset.yaml; the arguments are those of python -m anytime_jax.main.
#
# A pod that is evicted gets SIGTERM, at which the run saves and ends with status 0, as at its stop.
# Here that becomes status 143, so that the job counts as failed and the JobSet restarts it.
set -uo pipefail

evicted='' signalled=''
trap 'evicted=yes signalled=yes; kill -TERM $!' TERM

"${PYTHON:-python}" -m anytime_jax.main "$@" &
while true; do
  signalled=''
  wait $!
  status=$?
  [[ -n $signalled ]] || break # a signal ends the wait, not the run
done

if [[ -n $evicted && $status == 0 ]]; then
  exit 143
fi
exit "$status"
