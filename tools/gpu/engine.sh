#!/bin/sh
# Checks the CUDA device and the engine on it on a machine with a GPU: engine.sh DIR [OUT]
#   DIR   what `cmake --install BUILD --prefix DIR --strip` made of preset portable (bin/comoe, lib/libcomoe_cuda.so),
#         with bin/cuda_device_check beside it
#   OUT   folder for logs (default: .)
# Runs from the repository's root. Exits non-zero when a check failed; measures besides.
set -u
dir=$1
out=${2:-.}
mkdir -p "$out"
comoe="$dir/bin/comoe"
demo=models/moe-32x4-demo
failed=0
. "$(dirname "$0")/cublas.sh"

# check NAME COMMAND...: runs it, and prints the end of what it says when it fails.
check() {
  what=$1
  shift
  begin=$(date +%s%N)
  if timeout "${LIMIT:-20}" "$@" >"$out/$what.log" 2>&1; then
    state=ok
  else
    state="FAILED ($?)"
    failed=$((failed + 1))
  fi
  printf '%-44s %-12s %6d ms\n' "$what" "$state" "$((($(date +%s%N) - begin) / 1000000))"
  if [ "$state" != ok ]; then
    tail -4 "$out/$what.log" | cut -c1-400
  fi
}

check device "$dir/bin/cuda_device_check" "$dir/lib/libcomoe_cuda.so"
cat "$out/device.log"
for model in tests/fixtures/checkpoints/*/; do
  name=$(basename "$model")
  check "verify-$name-resident" "$comoe" verify "$model" --device cuda --policy resident --quiet
  check "verify-$name-lru" "$comoe" verify "$model" --device cuda --policy lru --expert-cache-fraction 0.3 --quiet
done
for policy in resident naive static lru simple hub; do
  share="--expert-cache-fraction 0.25"
  [ "$policy" != resident ] || share=
  check "verify-demo-$policy" "$comoe" verify "$demo" --device cuda --policy "$policy" $share --quiet
  check "verify-demo-$policy-lane" "$comoe" verify "$demo" --device cuda --policy "$policy" $share --host-lane on --quiet
done
# Rounded activations are judged by the NLL; greedy tokens and routing may differ where two are close.
check verify-demo-bf16 sh -c '"$1" verify "$2" --device cuda --policy resident --activations bf16 --quiet >"$3" 2>&1
  cat "$3"; grep -q "^PASS golden_nll" "$3"' sh "$comoe" "$demo" "$out/bf16.txt"
cat "$out/bf16.txt"
check generate "$comoe" generate --model "$demo" --device cuda --policy hub --expert-cache-fraction 0.25 \
  --prompt "The " --max-tokens 40 --greedy --quiet
cat "$out/generate.log"
LIMIT=90
for batch in 1 8; do
  check "bench-$batch" "$comoe" bench offload --model "$demo" --device cuda --widen 1024,768 --capacities 0.25 \
    --policies naive,static,lru,simple,hub,resident --batch "$batch" --steps 200 --warmup 40 --kv-bytes 256MiB --quiet
  tail -30 "$out/bench-$batch.log"
done
check bench-lane "$comoe" bench offload --model "$demo" --device cuda --widen 1024,768 --capacities 0.25 --host-lane on \
  --policies simple,hub --batch 8 --steps 200 --warmup 40 --kv-bytes 256MiB --quiet
tail -12 "$out/bench-lane.log"
check timeline "$comoe" bench offload --model "$demo" --device cuda --widen 1024,768 --capacities 0.25 --policies simple \
  --host-lane on --batch 8 --steps 20 --warmup 20 --kv-bytes 256MiB --timeline "$out/timeline.json" --timeline-steps 60 --quiet
# A server, a client, a load, metrics, and an orderly end.
for policy in resident hub; do
  share="--expert-cache-fraction 0.25"
  [ "$policy" != resident ] || share=
  "$comoe" serve --model "$demo" --device cuda --policy "$policy" $share --listen 127.0.0.1:50951 \
    --metrics-listen 127.0.0.1:9951 >"$out/serve-$policy.log" 2>&1 &
  server=$!
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    "$comoe" health --server 127.0.0.1:50951 >/dev/null 2>&1 && break
    sleep 0.3
  done
  check "serve-$policy-generate" "$comoe" generate --server 127.0.0.1:50951 --prompt "The " --max-tokens 16 --greedy
  check "serve-$policy-load" "$comoe" bench serve --server 127.0.0.1:50951 --clients 16 --requests 128 --prompt-tokens 64 --output-tokens 64 --quiet
  tail -12 "$out/serve-$policy-load.log"
  python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9951/metrics").read().decode())' \
    >"$out/metrics-$policy.txt" 2>/dev/null
  kill -TERM "$server"
  wait "$server"
  echo "server: exit $?"
done
# Wrong accesses of the kernels, on a small model.
if command -v compute-sanitizer >/dev/null 2>&1; then
  LIMIT=60
  check memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "$comoe" verify \
    tests/fixtures/checkpoints/qwen2_moe --device cuda --policy lru --expert-cache-fraction 0.3 --quiet
  tail -3 "$out/memcheck.log"
fi
echo "$failed checks failed"
[ "$failed" -eq 0 ]
