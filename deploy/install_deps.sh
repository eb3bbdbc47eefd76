#!/usr/bin/env bash
# Installs the Debian packages that a build needs, and nothing that is there already.
# Usage: deploy/install_deps.sh [--with tests] [--with clang] [--dry-run]
#   --with tests  also what the tests call: Python's gRPC, promtool (put into build/tools, no service is started)
#   --with clang  also clang, clang-tidy and the sanitizer runtimes of the slow checks
#   --dry-run     print what is missing, install nothing
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_packages=(
  g++ cmake ninja-build pkg-config ccache curl python3 python3-grpcio python3-protobuf
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev prometheus-cpp-dev
  nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev libhwy-dev libxxhash-dev libzip-dev
  libgtest-dev libgmock-dev
)
clang_packages=(clang clang-tidy clang-format libclang-rt-14-dev)

say() { printf '%s\n' "$*"; }
die() { printf 'install_deps: %s\n' "$*" >&2; exit 1; }

packages=("${build_packages[@]}")
want_promtool=no
dry_run=no
while [ $# -gt 0 ]; do
  case $1 in
    --with)
      case ${2:-} in
        tests) want_promtool=yes ;;
        clang) packages+=("${clang_packages[@]}") ;;
        *) die "--with takes 'tests' or 'clang', not '${2:-}'" ;;
      esac
      shift 2 ;;
    --dry-run) dry_run=yes; shift ;;
    -h|--help) sed -n '2,6s/^# //p' "$0"; exit 0 ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  die "this system has no apt-get. CoMoE is built with Debian 12's packages: install the equivalents of
  ${packages[*]}
or build the image (docker build .)."
fi

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null | sed -n 's/ installed$//p')
missing=()
for package in "${packages[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
promtool_dir=$root/build/tools
if [ $want_promtool = yes ] && { command -v promtool >/dev/null || [ -x "$promtool_dir/promtool" ]; }; then
  want_promtool=no
fi
if [ ${#missing[@]} -eq 0 ] && [ $want_promtool = no ]; then
  say "All packages are installed."
  exit 0
fi

[ ${#missing[@]} -eq 0 ] || say "Installing ${#missing[@]} packages: ${missing[*]}"
[ $want_promtool = no ] || say "Fetching promtool (package prometheus) into ${promtool_dir#"$root"/}"
[ $dry_run = no ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "installing needs root: run this as root or install sudo"
  as_root=(sudo)
fi
log=$(mktemp)
scratch=$(mktemp -d)
trap 'rm -rf "$log" "$scratch"' EXIT
quietly() {  # what a command prints is shown only if it fails
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "failed: $*"
  fi
}
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120
     -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
quietly "${apt[@]}" update
if [ ${#missing[@]} -gt 0 ]; then
  quietly "${apt[@]}" install --no-install-recommends "${missing[@]}"
fi
if [ $want_promtool = yes ]; then
  # The package would also start a Prometheus server on this machine; the tests need its one checker only.
  cd "$scratch"
  quietly apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=3 download prometheus
  mkdir -p "$promtool_dir"
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -O ./usr/bin/promtool >"$scratch/promtool"
  chmod 755 "$scratch/promtool"
  mv "$scratch/promtool" "$promtool_dir/promtool"
fi
say "Done."
