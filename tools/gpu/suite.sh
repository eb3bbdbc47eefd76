#!/bin/sh
# All that needs a GPU, within ten minutes, as one JSON: suite.sh DIR OUT [PART...]
#   DIR    a portable folder: bin/comoe, lib/libcomoe_cuda.so and the check programs in bin
#   OUT    gets suite.json, logs.tar.xz and timeline.json.gz
#   PART   some of: device kernels verify tokens sanitizer models resident doctor serve timeline step_watch bench
#          experts (default: all)
# suite.sh --build DIR   makes such a folder where the dependencies are (deploy/install_deps.sh); ARCHS may name
#                        CUDA architectures (default: those of the project)
# Runs from the repository's root. COMMIT: what DIR was built from (default: git's HEAD). LIMIT: seconds for all
# (default 570). MODELS: folders of further models with golden_nll.json, for part `models`. COMOE_CUBLAS: as for comoe.
# Exits 1 when a check failed or a target was missed.
set -eu
here=$(dirname "$0")
programs="cuda_device_check cuda_kernels_check cuda_kernels_bench cuda_tokens_check"
usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"
  exit 2
}
if [ "${1:-}" = --build ]; then
  case ${2:-} in
    "" | -*) usage ;;
  esac
  dir=$2
  build=build/gpu-suite
  cmake --preset portable -B "$build" -DBUILD_TESTING=ON ${ARCHS:+"-DCMAKE_CUDA_ARCHITECTURES=$ARCHS"}
  # The watch needs CUPTI's headers.
  watch=$(cmake --build "$build" --target help | grep -o 'comoe_step_watch' | head -1)
  # shellcheck disable=SC2086
  cmake --build "$build" --target comoe comoe_cuda $programs $watch
  cmake --install "$build" --prefix "$dir" --strip
  for program in $programs; do
    find "$build/tests" -name "$program" -type f -exec cp {} "$dir/bin/" \;
    strip "$dir/bin/$program"
  done
  find "$build/tests" -name libcomoe_step_watch.so -exec cp {} "$dir/lib/" \;
  exit
fi
[ $# -ge 2 ] || usage
for argument; do
  case $argument in
    "" | -*) usage ;;
  esac
done
if [ ! -x "$1/bin/comoe" ]; then
  echo "suite.sh: $1 has no bin/comoe: suite.sh --build $1 makes it" >&2
  exit 2
fi
. "$here/cublas.sh"
exec python3 "$here/suite.py" "$@"
