#!/usr/bin/env bash
# Train on every host of a TPU slice, through gcloud:
#
#   export NAME=my-slice ZONE=us-east5-a    # and the project of gcloud config
#   launch/tpu_vm.sh setup                  # once, and again after a change of the sources
#   launch/tpu_vm.sh run --config=configs/150m_inv_sqrt.py \
#       --config.run_dir=gs://BUCKET/runs/150m --config.data.path=gs://BUCKET/data/c4-t5
#   launch/tpu_vm.sh log                    # what host 0 prints; Ctrl-C ends the view, not the run
#   launch/tpu_vm.sh stop                   # the run saves and ends; the same `run` resumes it
#
# `setup` copies the committed files and installs them with jax[tpu] and gcsfs. The arguments of
# `run` are those of python -m anytime_jax.main; the service account of the slice needs access to
# the bucket (docs/clusters.md). The run does not depend on this terminal or machine. When a process
# is lost (ended by a signal), or the bucket, all are started again; a host that rebooted needs
# `stop` and `run`.
#
#   PYTHON    interpreter of the hosts, 3.11 or newer, installed by setup if missing (python3.11)
#   RESTARTS  how often, at most (10)
set -euo pipefail

fail() {
  echo "error: $*" >&2
  exit 2
}

action=${1:-}
[[ -n ${NAME:-} && -n ${ZONE:-} ]] || fail "set NAME and ZONE to those of the TPU slice"
(($#)) && shift

# Runs a command in the home directory of some workers.
on() {
  gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker="$1" --command="$2"
}

case $action in
setup)
  python=${PYTHON:-python3.11}
  sources=$(mktemp -d)
  trap 'rm -r "$sources"' EXIT
  git -C "$(dirname "$0")/.." archive --format=tar.gz --output="$sources/anytime_jax.tar.gz" HEAD
  gcloud compute tpus tpu-vm scp "$sources/anytime_jax.tar.gz" "$NAME:" --zone="$ZONE" --worker=all
  on all "set -e
    $python -c 'import ensurepip' || { sudo apt-get update -q; sudo apt-get install -qy $python-venv; }
    mkdir -p anytime_jax
    tar -xzf anytime_jax.tar.gz -C anytime_jax
    cd anytime_jax
    $python -m venv .venv
    .venv/bin/pip install --quiet -c constraints.txt -e '.[tpu,gcs]'"
  ;;
run)
  (($#)) || fail "give the arguments of the run: --config=FILE, --config.run_dir=gs://... and --config.data.path=gs://..."
  printf -v line ' %q' "$@"
  printf -v variables '%s=%q ' RESTARTS "${RESTARTS:-10}"
  # A session of its own outlives the connection; flock keeps a host to one run at a time.
  on all "cd anytime_jax || exit
    flock --nonblock run.lock true || { echo 'error: a run is in progress here' >&2; exit 2; }
    ${variables}setsid flock run.lock \\
      bash launch/tpu_vm_host.sh$line >run.log 2>&1 </dev/null &"
  echo "started: launch/tpu_vm.sh log shows it, launch/tpu_vm.sh stop saves and ends it"
  ;;
log)
  on 0 "tail -n 100 -F anytime_jax/run.log"
  ;;
stop)
  on all "cd anytime_jax || exit
    flock --nonblock run.lock true && { echo 'no run is in progress here'; exit; }
    kill -TERM \"\$(cat run.pid)\"
    flock run.lock tail -n 3 run.log"
  ;;
*)
  fail "give setup, run, log or stop; see the head of this file"
  ;;
esac
