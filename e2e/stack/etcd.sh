#!/usr/bin/env bash
# etcd.sh [--tools] MINOR: prints a folder that holds `etcd` of this minor; with --tools, `etcdctl` and `etcdutl` too.
# Everything in this project looks in this order: QUORATE_ETCD_DIR (a folder with `etcd-MINOR/etcd`, or with `etcd`), the
# cache, `etcd` on PATH if its version is one that we support, and then it is built into the cache (build.sh).
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"

programs=(etcd)
if [[ ${1:-} == --tools ]]; then
  programs+=(etcdctl etcdutl)
  shift
fi
[[ $# -eq 1 ]] || die "usage: etcd.sh [--tools] MINOR"
minor=$1

# Older patch releases can lose or corrupt data in ways that no membership rule can mend.
case $minor in
  3.5) oldest=3.5.30 ;;
  3.6) oldest=3.6.11 ;;
  3.7) oldest=3.7.0 ;;
  *) die "etcd $minor is not supported: 3.5, 3.6 or 3.7" ;;
esac

version_in() { # FOLDER -> 3.6.16
  "$1/etcd" --version 2>/dev/null | sed -n 's/^etcd Version: *//p'
}

serves() { # FOLDER: does it hold what was asked for?
  local program version
  for program in "${programs[@]}"; do
    [[ -x $1/$program ]] || return 1
  done
  version=$(version_in "$1") || return 1
  [[ $version == "$minor".* ]] && at_least "$version" "$oldest"
}

found() {
  printf '%s\n' "$1"
  exit 0
}

if [[ -n ${QUORATE_ETCD_DIR:-} ]]; then
  for folder in "$QUORATE_ETCD_DIR/etcd-$minor" "$QUORATE_ETCD_DIR"; do
    ! serves "$folder" || found "$(cd "$folder" && pwd)"
  done
  say "QUORATE_ETCD_DIR has no ${programs[*]} of $minor ($oldest or newer): looking further"
fi

if have go; then
  folder=$("$stack/build.sh" --print-dir "$minor")
  [[ ! -d $folder ]] || found "$folder"
fi

if have etcd; then
  folder=$(dirname "$(command -v etcd)")
  ! serves "$folder" || found "$folder"
fi

"$stack/build.sh" "$minor"
