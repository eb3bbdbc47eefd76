#!/bin/sh
# Checks and times the CUDA kernels on a machine with a GPU: kernels.sh BIN [OUT] [FILTER]
#   BIN   folder with cuda_kernels_check and cuda_kernels_bench
#   OUT   folder for logs and bench.jsonl (default: .)
# SANITIZE=1 also runs compute-sanitizer's memcheck and racecheck over the quick checks.
set -u
bin=$1
out=${2:-.}
filter=${3:-}
. "$(dirname "$0")/cublas.sh"
status=0
timeout 150 "$bin/cuda_kernels_check" >"$out/check.log" 2>&1 || status=1
tail -40 "$out/check.log"
if [ "${SANITIZE:-0}" = 1 ]; then
  for tool in memcheck racecheck; do
    timeout 150 compute-sanitizer --tool $tool --error-exitcode 9 "$bin/cuda_kernels_check" --quick \
      >"$out/$tool.log" 2>&1
    echo "$tool: exit $?"
    tail -5 "$out/$tool.log"
  done
fi
timeout 150 "$bin/cuda_kernels_bench" "$out/bench.jsonl" "$filter" 2>&1 | tee "$out/bench.log" | tail -120
exit $status
