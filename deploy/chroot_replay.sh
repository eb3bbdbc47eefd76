#!/usr/bin/env bash
# Replays, in a bare Debian chroot made by debootstrap, what a newcomer does; for machines without a container
# engine. Works on a fresh clone of HEAD: what is not committed is not there.
# Usage: deploy/chroot_replay.sh [--dockerfile] [--cache FILE] [--keep]
#   (none)        the README's first command with --once, then its second; prints the wall time of each
#   --dockerfile  the Dockerfile's steps, a chroot for each stage; then runs the result as its user on a read-only
#                 root without capabilities, waits for HEALTHCHECK, streams a completion, reads /metrics, stops it
#   --cache FILE  a tar archive of the bare system: read if it exists, else written
#   --keep        leave the chroots behind and say where
# Needs root, debootstrap, git, ip and unshare. Every command runs in mount and process namespaces
# of its own, so whatever it mounts and whatever it starts is gone when it ends.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm
mode=readme
cache=
keep=no

die() { printf 'chroot_replay: %s\n' "$*" >&2; exit 1; }
step() { printf '\n== %s\n' "$*"; }

while [ $# -gt 0 ]; do
  case $1 in
    --dockerfile) mode=dockerfile; shift ;;
    --cache) cache=${2:-}; shift 2 || die "--cache takes a file" ;;
    --keep) keep=yes; shift ;;
    -h|--help) sed -n '2,12s/^# //p' "$0"; exit 0 ;;
    *) die "unknown option '$1' (see --help)" ;;
  esac
done
[ "$(id -u)" -eq 0 ] || die "chroot and mounts need root"
for program in debootstrap git ip python3 unshare; do
  command -v $program >/dev/null || die "needs $program"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/comoe-chroot.XXXXXX")
clean_up() {
  if [ $keep = yes ]; then
    echo "kept: $work"
  elif grep -qF " $work/" /proc/self/mountinfo; then
    echo "chroot_replay: something is still mounted below $work; not deleted" >&2
  else
    rm -rf --one-file-system "$work"
  fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What this machine's apt knows of Debian's archive, as one-line sources.
debian_sources() {
  local found
  found=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
            'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep -E " $suite(-[a-z]+)? " | sort -u) || true
  if ! grep -q " $suite " <<<"$found"; then
    found="deb http://deb.debian.org/debian $suite main
deb http://deb.debian.org/debian $suite-updates main
deb http://deb.debian.org/debian-security $suite-security main"
  fi
  printf '%s\n' "$found"
}

make_root() {  # folder
  local root=$1 archive=${cache:-$work/base.tar}
  mkdir -p "$root"
  if [ ! -s "$archive" ]; then
    local mirror
    mirror=$(debian_sources | awk -v suite=$suite '$3 == suite {print $2; exit}')
    echo "debootstrap --variant=minbase $suite, from $mirror"
    debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$work/debootstrap.log" 2>&1 ||
      { tail -n 30 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
    debian_sources >"$root/etc/apt/sources.list"
    apt-config dump | grep -E '^Acquire::(https?::|Check-|Retries)' >"$root/etc/apt/apt.conf.d/90host" || true
    rm -rf "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" -cf "$archive.part" .
    mv "$archive.part" "$archive"
  else
    tar -C "$root" -xf "$archive"
  fi
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  if grep -q ' https:' "$root/etc/apt/sources.list" && [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  fi
}

base_environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
                  TERM="${TERM:-dumb}")
for name in http_proxy https_proxy no_proxy; do
  [ -z "${!name:-}" ] || base_environment+=("$name=${!name}")
done

mount_system() {  # root: /proc, and no more of /dev than a container has
  mount -t proc proc "$1/proc"
  mount -t tmpfs -o mode=755,nosuid dev "$1/dev"
  mknod -m 666 "$1/dev/null" c 1 3
  mknod -m 666 "$1/dev/zero" c 1 5
  mknod -m 666 "$1/dev/full" c 1 7
  mknod -m 666 "$1/dev/random" c 1 8
  mknod -m 666 "$1/dev/urandom" c 1 9
  mknod -m 666 "$1/dev/tty" c 5 0
  ln -s /proc/self/fd "$1/dev/fd"
  ln -s /proc/self/fd/0 "$1/dev/stdin"
  ln -s /proc/self/fd/1 "$1/dev/stdout"
  ln -s /proc/self/fd/2 "$1/dev/stderr"
  mkdir "$1/dev/shm"
  mount -t tmpfs -o mode=1777,nosuid,nodev shm "$1/dev/shm"
}
export -f mount_system

in_root() {  # root user[:group] folder command...; `environment` holds NAME=VALUE
  local root=$1 user=$2 folder=$3
  shift 3
  unshare --mount --pid --fork --kill-child bash -c '
    set -euo pipefail
    root=$1 user=$2
    shift 2
    mount_system "$root"
    exec chroot --userspec="$user" "$root" "$@"' in_root "$root" "$user" \
    env -i "${environment[@]}" /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$folder" "$@"
}

now() { date +%s.%N; }
seconds_since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.0f", b - a}'; }
clone_head() { git clone --quiet --no-local "$repository" "$1"; }

replay_readme() {
  local root=$work/root commands start first second
  step "Bare $suite"
  make_root "$root"
  clone_head "$root/root/comoe"
  # The first two scripts that the README tells its reader to call.
  mapfile -t commands < <(grep -hoP '^\s*(\$ )?\K\./deploy/[\w./-]+[^#`]*' "$root/root/comoe/README.md" |
                          awk '{sub(/[ \t]+$/, "")} !seen[$1]++' | head -n 2)
  [ ${#commands[@]} -eq 2 ] || die "README.md of HEAD does not show two ./deploy/ commands at the start of a line"
  environment=("${base_environment[@]}")
  step "${commands[0]} --once"
  start=$(now)
  in_root "$root" root:root /root/comoe bash -c "${commands[0]} --once" </dev/null
  first=$(seconds_since "$start")
  step "${commands[1]}"
  start=$(now)
  in_root "$root" root:root /root/comoe bash -c "${commands[1]}" </dev/null
  second=$(seconds_since "$start")
  step "Wall time on $(nproc) cores: ${commands[0]} --once $first s, ${commands[1]} $second s, total $((first + second)) s"
}

json_words() {  # ["a", "b"] -> a NUL b NUL
  python3 -c 'import json, sys; sys.stdout.write("".join(w + "\0" for w in json.loads(sys.argv[1])))' "$1"
}

copy_into() {  # from to source... destination (paths as COPY means them; destination below $folder if relative)
  local from=$1 to=$2 destination source
  shift 2
  destination=${!#}
  [[ $destination == /* ]] || destination=$folder/$destination
  while [ $# -gt 1 ]; do
    source=$from/${1#/}
    [ -e "$source" ] || die "COPY: there is no $1"
    if [ -d "$source" ]; then
      mkdir -p "$to/$destination"
      cp -R --preserve=mode,timestamps,links "$source/." "$to/$destination/"
    else
      [[ $destination == */ ]] || [ $# -eq 2 ] || destination+=/
      mkdir -p "$to/$(dirname "${destination}x")"
      cp --preserve=mode,timestamps "$source" "$to/$destination"
    fi
    shift
  done
}

# Reads the subset of the Dockerfile language that ours uses; anything else is an error, not ignored.
replay_dockerfile() {
  local context=$work/context line word rest root='' user=root:root folder=/ stop_signal=SIGTERM
  local -A stages=()
  local entrypoint=() command=() health=() words=() pattern stage=0
  clone_head "$context"
  while read -r pattern; do
    # shellcheck disable=SC2086  # a pattern is to be expanded
    [ -z "$pattern" ] || [[ $pattern == \#* ]] || (cd "$context" && rm -rf -- $pattern)
  done <"$context/.dockerignore"
  environment=("${base_environment[@]}")
  while read -r line; do
    word=${line%%[[:space:]]*}
    rest=${line#"$word"}
    rest=${rest#"${rest%%[![:space:]]*}"}
    step "$word ${rest:0:150}"
    case $word in
      FROM)
        read -ra words <<<"$rest"
        [ "${words[0]}" = "debian:$suite-slim" ] || die "FROM ${words[0]}: only debian:$suite-slim is known here"
        root=$work/stage$stage
        stages[$stage]=$root
        [ "${words[1]:-}" != AS ] || stages[${words[2]}]=$root
        stage=$((stage + 1))
        user=root:root folder=/ environment=("${base_environment[@]}")
        make_root "$root" ;;
      WORKDIR) folder=$rest; mkdir -p "$root/$folder" ;;
      ENV) environment+=("$rest") ;;
      USER) user=$rest ;;
      COPY)
        read -ra words <<<"$rest"
        if [[ ${words[0]} == --from=* ]]; then
          word=${words[0]#--from=}
          copy_into "${stages[$word]:?no stage $word}" "$root" "${words[@]:1}"
        else
          copy_into "$context" "$root" "${words[@]}"
        fi ;;
      RUN)
        if [[ $rest == \[* ]]; then
          mapfile -d '' -t words < <(json_words "$rest")
        else
          words=(/bin/sh -c "$rest")
        fi
        in_root "$root" "$user" "$folder" "${words[@]}" </dev/null ;;
      ENTRYPOINT) mapfile -d '' -t entrypoint < <(json_words "$rest") ;;
      CMD) mapfile -d '' -t command < <(json_words "$rest") ;;
      HEALTHCHECK) mapfile -d '' -t health < <(json_words "[${rest#*CMD*[}") ;;
      STOPSIGNAL) stop_signal=$rest ;;
      EXPOSE) ;;
      *) die "Dockerfile: $word is not known here" ;;
    esac
  done < <(grep -vE '^\s*(#|$)' "$context/Dockerfile" | sed -e ':a' -e '/\\$/{N;s/[ \t]*\\\n[ \t]*/ /;ba' -e '}')
  [ ${#entrypoint[@]} -gt 0 ] || die "Dockerfile: no ENTRYPOINT"
  [ ${#health[@]} -gt 0 ] || die "Dockerfile: no HEALTHCHECK"
  step "Run as $user: ${entrypoint[*]} ${command[*]}"
  echo "runtime root: $(du -sm --one-file-system "$root" | cut -f1) MB"
  environment+=(HOME=/)
  unshare --mount --pid --net --fork --kill-child bash -c 'contained "$@"' contained "$root" "$user" "$stop_signal" \
    "${#environment[@]}" "${environment[@]}" "${#health[@]}" "${health[@]}" \
    "$((${#entrypoint[@]} + ${#command[@]}))" "${entrypoint[@]}" "${command[@]}" </dev/null
}

# Runs inside namespaces of its own: starts the image's command as compose would (read-only root, tmpfs on /tmp, no
# capabilities, no new privileges, a network with nothing but loopback), and plays container engine and client.
# Arguments: root user stop_signal, then three lists, each after its length: environment, health command, command.
contained() {
  set -euo pipefail
  local root=$1 user=$2 stop_signal=$3 variables health server deadline text metrics stopped status=0
  shift 3
  variables=("${@:2:$1}"); shift $(($1 + 1))
  health=("${@:2:$1}"); shift $(($1 + 1))
  shift 1
  fail() { printf 'chroot_replay: %s\n' "$*" >&2; sed 's/^/server: /' /run/server.log >&2; exit 1; }
  confined() {
    exec chroot "$root" setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups --no-new-privs \
      --bounding-set=-all --inh-caps=-all env -i "${variables[@]}" "$@"
  }
  ip link set lo up
  mount -t tmpfs run /run  # seen only here: the server's log
  mount --bind "$root" "$root"
  mount_system "$root"
  mount -t tmpfs -o mode=1777,nosuid,nodev tmp "$root/tmp"
  mount -o remount,bind,ro "$root"
  confined "$@" >/run/server.log 2>&1 &
  server=$!
  deadline=$((SECONDS + 90))
  until (confined "${health[@]}") >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || fail "the server ended before it was healthy"
    [ $SECONDS -lt $deadline ] || fail "not healthy within 90 s"
    sleep 0.5
  done
  echo "healthy: ${health[*]}"
  grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs):' "$root/proc/$server/status" || fail "the server is gone"
  ! (confined touch /usr/written) 2>/dev/null || fail "the root is not read-only"
  text=$(confined "$1" generate --server 127.0.0.1:50051 --max-tokens 48 \
           --prompt "It is a truth universally acknowledged, that") || fail "the completion failed"
  printf '%s\n' "$text"
  [ -n "$text" ] || fail "the completion is empty"
  exec 3<>/dev/tcp/127.0.0.1/9400 || fail "nothing listens on the metrics port"
  printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
  metrics=$(timeout 10 cat <&3) || true  # what came is judged next
  grep -q '^comoe_' <<<"$metrics" || fail "/metrics holds no comoe_ series"
  echo "/metrics: $(grep -c '^comoe_' <<<"$metrics") series"
  stopped=$SECONDS
  kill -s "${stop_signal#SIG}" "$server"
  wait "$server" || status=$?
  [ $status -eq 0 ] || fail "the server's exit status after $stop_signal was $status"
  echo "stopped by $stop_signal with status 0 after $((SECONDS - stopped)) s"
}
export -f contained

start=$(now)
if [ $mode = dockerfile ]; then
  replay_dockerfile
else
  replay_readme
fi
step "Passed, $(seconds_since "$start") s in all"
