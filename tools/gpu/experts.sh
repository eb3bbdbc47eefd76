#!/bin/sh
# Compares policies on a machine with a GPU, for a model whose experts (20 GB) do not fit into the budget: experts.sh DIR [OUT]
#   DIR   what `cmake --install BUILD --prefix DIR --strip` made of preset portable
#   OUT   folder for tables and JSON (default: .)
# Runs from the repository's root: the demo model is widened in memory. BATCHES, STEPS and POLICIES may be set.
set -u
comoe="$1/bin/comoe"
out=${2:-.}
mkdir -p "$out"
. "$(dirname "$0")/cublas.sh"
# 256 experts of 3 x 2048 x 6400 in BF16: 20.1 GB, of which a quarter lies on the device.
bench() {
  name=$1
  shift
  begin=$(date +%s)
  "$comoe" bench offload --model models/moe-32x4-demo --device cuda --widen 2048,6400 --capacities 0.25 --kv-bytes 256MiB \
    --steps "${STEPS:-40}" --warmup 20 --activations bf16 --json --quiet "$@" >"$out/$name.json" 2>"$out/$name.log"
  echo "$name: exit $?, $(($(date +%s) - begin)) s"
  python3 - "$out/$name.json" <<'EOF' || tail -3 "$out/$name.log"
import json, sys
for p in json.load(open(sys.argv[1]))["points"]:
    print({k: (round(v, 4) if isinstance(v, float) else v) for k, v in p.items() if not isinstance(v, (dict, list))})
EOF
}
for batch in ${BATCHES:-1 4 16}; do
  bench "experts-$batch" --policies "${POLICIES:-naive,static,lru,simple,hub}" --batch "$batch"
  bench "experts-$batch-lane" --policies "${LANE_POLICIES:-simple,hub}" --batch "$batch" --host-lane on
done
