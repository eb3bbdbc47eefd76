#!/usr/bin/env bash
# Builds and runs the tests; installs what is missing first. Ends with ctest's summary, and fails if anything did.
# Usage: deploy/test.sh [--preset NAME] [--asan] [--slow] [--tidy-base REV] [--jobs N]
#   (none)           preset ci: labels unit and e2e
#   --preset NAME    that preset instead (debug, asan, tsan, ...); tsan runs the unit tests only, fuzz the fuzzers only
#   --asan           AddressSanitizer and UBSan before preset ci
#   --slow           before preset ci: clang with thread-safety analysis, clang-tidy, every fuzzer for a minute,
#                    tsan, asan; and preset ci also runs the tests with label slow, among them ten minutes of full load
#   --tidy-base REV  with --slow: clang-tidy reads only the files that differ from REV, not all
#   --jobs N         compile jobs (all cores)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

preset=ci
asan=no
slow=no
tidy_base=
jobs=$(nproc)
test_jobs=2
fuzz_s=${COMOE_FUZZ_SECONDS:-60}

die() { printf 'test: %s\n' "$*" >&2; exit 1; }
step() { printf '\n== %s (%d s so far)\n' "$*" "$SECONDS"; }

while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:-}; shift 2 || die "--preset takes a name" ;;
    --asan) asan=yes; shift ;;
    --slow) slow=yes; shift ;;
    --tidy-base) tidy_base=${2:-}; shift 2 || die "--tidy-base takes a revision" ;;
    --jobs) jobs=${2:-}; shift 2 || die "--jobs takes a number" ;;
    -h|--help) sed -n '2,11s/^# //p' "$0"; exit 0 ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs takes a number, not '$jobs'"

# Tests with the large models look here and pass over what is absent.
if [ -z "${COMOE_SHARED:-}" ] && [ -d "$root/../shared" ]; then
  COMOE_SHARED=$(cd "$root/../shared" && pwd)
  export COMOE_SHARED
fi
export CCACHE_BASEDIR=$root  # so that presets with the same flags share what ccache holds
export NINJA_STATUS="[%f/%t] "
export PATH=$PATH:$root/build/tools  # promtool, if install_deps.sh had to fetch it
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$root/tests/tsan.supp}

configure() {  # preset
  local options=() log=build/configure-$1.log
  # Debian's Python modules belong to Debian's interpreter, whichever `python3` comes first in PATH.
  [ ! -x /usr/bin/python3 ] || options+=(-DPython3_EXECUTABLE=/usr/bin/python3)
  mkdir -p build
  if ! cmake --preset "$1" "${options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    die "the configuration of preset $1 failed; its output is above"
  fi
}

build() {  # preset [target...]
  local name=$1
  shift
  configure "$name"
  cmake --build "build/$name" -j "$jobs" ${1:+--target "$@"}
}

run_tests() {  # preset labels
  step "Build, preset $1"
  build "$1"
  step "Tests, preset $1, labels $2"
  ctest --test-dir "build/$1" -L "^($2)\$" -j $test_jobs --output-on-failure --no-tests=error
}

run_tidy() {
  local files=() all
  all=$(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build/clang/compile_commands.json |
        grep -E "^$root/(engine|scheduler|server|cli)/" | sort -u)
  if [ -n "$tidy_base" ]; then
    local changed
    changed=$(git diff --name-only --diff-filter=d "$tidy_base" -- '*.cc') || die "'$tidy_base' is no revision"
    mapfile -t files < <(grep -xF "$(awk -v root="$root/" '{print root $0}' <<<"$changed")" <<<"$all" || true)
  else
    mapfile -t files <<<"$all"
  fi
  step "clang-tidy, ${#files[@]} files"
  [ ${#files[@]} -gt 0 ] || return 0
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" clang-tidy --quiet -p build/clang
}

run_fuzzers() {
  local list folder name program
  list=$(grep -hoP '^\s*comoe_fuzzer\(\s*\K\w+' tests/fuzz/*/CMakeLists.txt) || die "no fuzzer below tests/fuzz"
  step "Build, preset fuzz: $(tr '\n' ' ' <<<"$list")"
  # shellcheck disable=SC2086  # one target a word
  build fuzz $list
  for folder in tests/fuzz/*/; do
    folder=${folder%/}
    name=$(grep -hoP '^\s*comoe_fuzzer\(\s*\K\w+' "$folder/CMakeLists.txt") || continue
    program=build/fuzz/$folder/$name
    mkdir -p "build/fuzz/corpus/$name" build/fuzz/findings
    step "Fuzz $name for $fuzz_s s"
    # What it finds worth keeping goes to the first folder; the committed corpus is only read.
    local corpus=("build/fuzz/corpus/$name")
    [ ! -d "$folder/corpus" ] || corpus+=("$folder/corpus")
    "$program" -max_total_time="$fuzz_s" -rss_limit_mb=4096 -timeout=10 -verbosity=0 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/findings/$name-" "${corpus[@]}" ||
      die "$name found an input that breaks it; it lies in build/fuzz/findings"
  done
}

step "Packages"
deploy/install_deps.sh --with tests
if [ $slow = yes ] || [ "$preset" = clang ] || [ "$preset" = fuzz ]; then
  deploy/install_deps.sh --with clang
fi

if [ $slow = yes ]; then
  export COMOE_TEST_OPERATIONS=150000  # of the scheduler's property test, for each of its worlds: a million in all
  step "Build, preset clang"
  build clang
  run_tidy
  run_fuzzers
  run_tests tsan "unit"
fi
if [ "$preset" = fuzz ]; then
  run_fuzzers
  exit 0
fi
if [ $asan = yes ] || [ $slow = yes ]; then
  [ "$preset" = asan ] || run_tests asan "unit|e2e"
fi
labels="unit|e2e"
[ $slow = no ] || labels="unit|e2e|slow"
[ "$preset" != tsan ] || labels="unit"
run_tests "$preset" "$labels"
