#!/bin/sh
# Runs the studies of docs/studies.md and draws their plots: tools/studies.sh [COMOE] [OUT] [MODEL...]
#
# COMOE: the program (default: build/release/cli/comoe). OUT: a folder for the plots (default: docs/plots), made if
# it is not there; tables go to build/studies. MODEL: folders with a routing_trace.npz (default: moe-64x2 where
# $COMOE_SHARED or ../shared has it, and models/moe-32x4-demo).
# Everything is emulated, so that results repeat exactly. Needs gnuplot. Takes some minutes on two cores.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
comoe=${1:-$root/build/release/cli/comoe}
out=${2:-$root/docs/plots}
[ $# -ge 1 ] && shift
[ $# -ge 1 ] && shift
if [ $# -eq 0 ]; then
  set -- "$root/models/moe-32x4-demo"
  shared=${COMOE_SHARED:-$root/../shared}
  [ -d "$shared/models/moe-64x2" ] && set -- "$shared/models/moe-64x2" "$@"
fi
command -v gnuplot > /dev/null || { echo "studies.sh: needs gnuplot" >&2; exit 1; }
tables=$root/build/studies
mkdir -p "$out" "$tables"
begin=$(date +%s)

# study NAME COMMAND...: the table goes to NAME.txt; a plot to NAME.svg for the first model, and of its ablation for
# each (plots are kept in the repository, and there are enough).
study() {
  name=$1
  shift
  echo "[$(($(date +%s) - begin)) s] $name" >&2
  case $model:$name in
    "$first":* | *:"ablation-$m") set -- "$@" --plot "$out/$name.svg" ;;
  esac
  "$comoe" "$@" --quiet > "$tables/$name.txt"
}

first=$1

for model in "$@"; do
  m=$(basename "$model")
  trace=$model/routing_trace.npz
  # A copy of 4 computations: many rows share an expert, or a fast link. 36, with 15 on the host: one row,
  # memory alone counts (25, 60 and 900 GB/s).
  study "ablation-$m" bench offload --model "$model" --ablation --batch 1,8 --steps 500 --warmup 0 \
    --copy-computes 4 --host-computes 6
  study "ablation-slow-$m" bench offload --model "$model" --ablation --batch 1,8 --steps 500 --warmup 0 \
    --copy-computes 36 --host-computes 15
  study "accuracy-$m" trace study accuracy --trace "$trace" --links 4,12
  study "accuracy-idle-$m" trace study accuracy --trace "$trace" --links 4,12 --dense-computes 6
  study "width-$m" trace study width --trace "$trace" --links 4,12
  study "replay-$m" trace replay --trace "$trace" --capacity 0.125,0.25,0.5 --batch 8 --predictors none --steps 1000
  echo "[$(($(date +%s) - begin)) s] stats-$m" >&2
  "$comoe" trace stats --trace "$trace" > "$tables/stats-$m.txt"
  "$comoe" trace replay --trace "$trace" --capacity 0.125,0.25,0.5 --predictors none --steps 1000 --quiet \
    > "$tables/replay-alone-$m.txt"
done
model=$first
m=$(basename "$model")
study "sweep-$m" bench offload --model "$model" --batch 1,8 --steps 300 --copy-computes 4 \
  --sweep look_ahead=0,1,2,3 --sweep cut_off=0.2,0.4,0.6,0.8 --sweep prefetch_depth=0,2,4,8,16
echo "[$(($(date +%s) - begin)) s] done: plots in $out, tables in $tables" >&2
