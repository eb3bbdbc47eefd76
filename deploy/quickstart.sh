#!/usr/bin/env bash
# From a clone to streamed text: installs what is missing, builds, serves the demo model, streams a completion
# through gRPC and keeps serving until Ctrl-C.
# Usage: deploy/quickstart.sh [--once] [--port N] [--metrics-port N]
#   --once            stop the server after the completion; the exit status says whether all of it worked
#   --port N          gRPC port on 127.0.0.1 (50051)
#   --metrics-port N  Prometheus port on 127.0.0.1 (9400)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

once=no
port=50051
metrics_port=9400
model=models/moe-32x4-demo
prompt="It is a truth universally acknowledged, that"
start_timeout_s=${COMOE_START_TIMEOUT_S:-120}
stop_timeout_s=30

die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }
step() { printf '\n== %s\n' "$*"; }

while [ $# -gt 0 ]; do
  case $1 in
    --once) once=yes; shift ;;
    --port) port=${2:-}; shift 2 || die "--port takes a number" ;;
    --metrics-port) metrics_port=${2:-}; shift 2 || die "--metrics-port takes a number" ;;
    -h|--help) sed -n '2,7s/^# //p' "$0"; exit 0 ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
done
for number in "$port" "$metrics_port"; do
  if ! [[ $number =~ ^[1-9][0-9]{0,4}$ ]] || [ "$number" -gt 65535 ]; then
    die "'$number' is no port: 1 to 65535"
  fi
done
address=127.0.0.1:$port

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
! listens "$port" || die "something already listens on 127.0.0.1:$port; choose another with --port"
! listens "$metrics_port" ||
  die "something already listens on 127.0.0.1:$metrics_port; choose another with --metrics-port"

step "Packages"
deploy/install_deps.sh

step "Build (build/release)"
mkdir -p build
export CCACHE_BASEDIR=$root
if ! cmake --preset release >build/quickstart-configure.log 2>&1; then
  cat build/quickstart-configure.log >&2
  die "the configuration failed; its output is above and in build/quickstart-configure.log"
fi
NINJA_STATUS="[%f/%t] " cmake --build --preset release --target comoe -j "$(nproc)"
comoe=build/release/cli/comoe

step "Serve $model on $address"
log=build/quickstart-server.log
"$comoe" serve --model "$model" --device cpu --listen "$address" \
  --metrics-listen "127.0.0.1:$metrics_port" >"$log" 2>&1 </dev/null &
server=$!

# Ends the server with SIGTERM, as a container runtime would; its exit status is the result.
stop_server() {
  local status=0 deadline
  kill -TERM "$server" 2>/dev/null || true
  deadline=$((SECONDS + stop_timeout_s))
  while kill -0 "$server" 2>/dev/null; do
    if [ $SECONDS -ge $deadline ]; then
      printf 'quickstart: the server has not stopped within %s s of SIGTERM; killed\n' "$stop_timeout_s" >&2
      kill -KILL "$server" 2>/dev/null || true
    fi
    sleep 0.1
  done
  wait "$server" || status=$?
  server=
  return $status
}
trap '[ -z "$server" ] || stop_server || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
server_failed() {
  printf '\n-- %s (last lines):\n' "$log" >&2
  tail -n 40 "$log" >&2
  die "$*"
}

deadline=$((SECONDS + start_timeout_s))
until "$comoe" health --server "$address" >/dev/null 2>&1; do
  kill -0 "$server" 2>/dev/null || server_failed "the server ended before it was healthy"
  [ $SECONDS -lt $deadline ] || server_failed "the server was not healthy within $start_timeout_s s"
  sleep 0.2
done
kill -0 "$server" 2>/dev/null || server_failed "the server ended as soon as it was healthy"
echo "healthy; its log is $log"

step "One completion, streamed over gRPC"
printf '%s' "$prompt"
"$comoe" generate --server "$address" --prompt "$prompt" --max-tokens 48 </dev/null ||
  server_failed "the completion failed"
echo

if [ $once = yes ]; then
  stop_server || server_failed "the server's exit status was $?"
  step "Done: the server has stopped"
  exit 0
fi

step "Serving until Ctrl-C"
cat <<TEXT
Another completion:  $comoe generate --server $address --prompt "Call me" --max-tokens 64
Health:              $comoe health --server $address
Metrics:             http://127.0.0.1:$metrics_port/metrics
All tests:           ./deploy/test.sh
TEXT
trap 'echo; echo "Stopping."; stop_server || server_failed "the server ended with status $?"; exit 0' INT TERM
status=0
wait "$server" || status=$?
server=
server_failed "the server ended by itself with status $status"
