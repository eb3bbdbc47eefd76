#!/bin/sh
# Shows that a step neither allocates, nor uses a default stream, nor waits for the whole device: step_watch.sh DIR OUT
#   DIR   a portable folder, with libcomoe_step_watch.so (target comoe_step_watch) in bin or lib
#   OUT   gets step_watch.json, the counts of each run and logs
# Runs from the repository's root. COMOE_CUPTI may name libcupti.so. Exits 1 when a step does what it must not, and when
# nothing could be counted.
set -u
usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"
  exit 2
}
[ $# -eq 2 ] || usage
for argument; do
  case $argument in
    "" | -*) usage ;;
  esac
done
dir=$1
out=$2
here=$(dirname "$0")
if [ ! -x "$dir/bin/comoe" ]; then
  echo "step_watch.sh: $dir has no bin/comoe: suite.sh --build $dir makes it" >&2
  exit 2
fi
mkdir -p "$out"
rm -f "$out"/step_watch-*.json
. "$here/cublas.sh"
for watch in "$dir/bin/libcomoe_step_watch.so" "$dir/lib/libcomoe_step_watch.so"; do
  [ ! -e "$watch" ] || break
done
if [ ! -e "$watch" ]; then
  echo "step watch: $dir has no libcomoe_step_watch.so"
  exit 1
fi
if [ -z "${COMOE_CUPTI:-}" ]; then
  nvidia_library libcupti.so.13
  [ -z "$found" ] || export COMOE_CUPTI="$found"
fi
echo "CUPTI: ${COMOE_CUPTI:-none found}"

# watch NAME ARGUMENTS...: the same run with 20 and with 60 steps, both at once: nothing is timed.
watch() {
  name=$1
  shift
  for steps in 20 60; do
    { CUDA_INJECTION64_PATH=$(realpath "$watch") COMOE_STEP_WATCH="$out/step_watch-$name-$steps.json" \
      "$dir/bin/comoe" bench offload --model models/moe-32x4-demo --device cuda --widen 1024,768 --capacities 0.25 \
      --batch 4 --warmup 20 --steps "$steps" --kv-bytes 256MiB --activations bf16 --quiet --json "$@" \
      >"$out/step_watch-$name-$steps.out" 2>"$out/step_watch-$name-$steps.log" ||
      echo "$name, $steps steps: exit $?: $(tail -1 "$out/step_watch-$name-$steps.log" | cut -c1-300)"; } &
  done
  wait
}
for policy in resident lru simple hub; do
  watch "$policy" --policies "$policy"
done
for policy in simple hub; do
  watch "$policy-lane" --policies "$policy" --host-lane on
done
exec python3 "$here/step_watch.py" "$out"
