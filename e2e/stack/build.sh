#!/usr/bin/env bash
# build.sh [--print-dir] MINOR...: builds etcd, etcdctl and etcdutl of each minor (3.5, 3.6, 3.7) into the cache, once,
# from the pinned Go modules beside this script, and prints the folder of each. With --print-dir it prints and builds nothing.
# The cache folder's name carries a hash of what went in, so a new pin or another Go gets a folder of its own.
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"

folder_of() { # MINOR -> the name of its folder in the cache
  local from=$stack/etcd-$1
  [[ -d $from ]] || die "no etcd $1 here; there are: $(cd "$stack" && echo etcd-*)"
  have go || die "building etcd $1 needs Go 1.26 or newer on PATH; or point QUORATE_ETCD_DIR at a folder with etcd $1"
  printf 'etcd-%s-%s' "$1" "$( (cd "$from" && cat go.mod go.sum tools.go && go version) | key)"
}

build() { # MINOR FOLDER
  local minor=$1 out=$2 number=0 program package start=$SECONDS
  for program in etcd etcdctl etcdutl; do
    number=$((number + 1))
    package=$program
    [[ $program != etcd ]] || package=server
    say "etcd $minor: building $program ($number/3), about 2 min in all the first time"
    (cd "$stack/etcd-$minor" && CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags '-s -w' \
      -o "$out/$program" "go.etcd.io/etcd/$package/v3") || die "etcd $minor: building $program failed"
  done
  say "etcd $minor: $("$out/etcd" --version | head -n 1), built in $(minutes $((SECONDS - start)))"
}

print_only=false
if [[ ${1:-} == --print-dir ]]; then
  print_only=true
  shift
fi
[[ $# -gt 0 ]] || die "usage: build.sh [--print-dir] MINOR..."
for minor in "$@"; do
  folder=$(folder_of "$minor")
  $print_only || keep "$folder" build "$minor"
  printf '%s/%s\n' "$(cache_dir)" "$folder"
done
