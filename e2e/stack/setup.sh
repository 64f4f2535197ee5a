#!/usr/bin/env bash
# setup.sh [build] [network] [nextest] [deny]: makes sure that this machine has what building, testing or linting needs (default: all
# of it), and prints the folder of each cargo tool, for PATH. What is there already is left alone and costs a moment.
# System packages come from apt where there is apt; the cargo tools are built into the cache, not into ~/.cargo.
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"

# The same list as in docs/contributing: a compiler for aws-lc and zstd, protoc for our protocols and etcd's.
# libprotobuf-dev holds google/protobuf/*.proto, which etcd's protocols import.
packages=(gcc libc6-dev protobuf-compiler libprotobuf-dev)
# Tests make networks of their own, with faults in them, and clocks that jump.
network_packages=(iproute2 iptables util-linux faketime)

nextest_version=0.9.151
nextest_oldest=0.9.143
deny_version=0.20.2

compiles_c() { cc -xc -o /dev/null - <<<'#include <stdlib.h>
int main(void) { return 0; }' 2>/dev/null; }

compiles_proto() {
  local work ok=false
  work=$(mktemp -d)
  printf 'syntax = "proto3";\nimport "google/protobuf/descriptor.proto";\nmessage M {}\n' >"$work/m.proto"
  ! "${PROTOC:-protoc}" -I "$work" -o "$work/m.bin" "$work/m.proto" 2>/dev/null || ok=true
  rm -rf "$work"
  $ok
}

missing_for_build() { # what is missing, one a line
  compiles_c || echo "a C compiler with the C library's headers (cc)"
  compiles_proto || echo "the protobuf compiler with google/protobuf/*.proto (protoc)"
}

missing_for_network() {
  local program
  for program in ip iptables nsenter unshare faketime; do
    have "$program" || echo "$program"
  done
}

install() { # WHAT_IS_MISSING PACKAGES...: WHAT_IS_MISSING is a function that names it
  local missing apt
  missing=$("$1")
  [[ -n $missing ]] || return 0
  if ! have apt-get; then
    die "missing: ${missing//$'\n'/; }. Install it with this machine's package manager (on Debian: ${*:2})"
  fi
  apt="apt-get install --yes --no-install-recommends ${*:2}"
  if [[ $(id -u) -ne 0 ]]; then
    die "missing: ${missing//$'\n'/; }. Run: sudo apt-get update && sudo $apt"
  fi
  say "setup: installing ${*:2}"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086 # words on purpose
  { apt-get update && $apt; } </dev/null >&2 || die "apt-get could not install ${*:2}"
  missing=$("$1")
  [[ -z $missing ]] || die "still missing after apt-get: ${missing//$'\n'/; }"
}

build_needs() {
  have cargo || die "Rust is missing: install rustup (rust-toolchain.toml then picks the version)"
  install missing_for_build "${packages[@]}"
}

install_tool() { # NAME VERSION FLAGS... FOLDER
  local name=$1 version=$2 out=${*: -1} flags=("${@:3:$#-3}") start=$SECONDS
  say "$name $version: building, some minutes the first time"
  # Quick to build matters more here than quick to run: both tools spend their time waiting for others.
  (cd "$root" && CARGO_TARGET_DIR=$out/target CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=false \
    cargo install --quiet --locked --no-track --root "$out" --version "$version" "${flags[@]}" "$name" </dev/null >&2) ||
    die "cargo install $name $version failed"
  rm -rf "$out/target"
  say "$name $version: built in $(minutes $((SECONDS - start)))"
}

tool() { # NAME VERSION FLAGS...: builds it into the cache and prints its folder
  local folder
  folder=$1-$2-$( (rustc --version --verbose && echo "$@") | key)
  keep "$folder" install_tool "$@"
  printf '%s/%s/bin\n' "$(cache_dir)" "$folder"
}

version_on_path() { # NAME -> 0.9.151, or nothing
  ! have "$1" || "$1" --version 2>/dev/null | sed -n '1s/^[^0-9]*\([0-9.]*\).*/\1/p'
}

nextest() {
  local version
  version=$(version_on_path cargo-nextest)
  if [[ -n $version ]] && at_least "$version" "$nextest_oldest"; then
    dirname "$(command -v cargo-nextest)"
  else
    tool cargo-nextest "$nextest_version" --no-default-features --features default-no-update
  fi
}

deny() {
  if [[ $(version_on_path cargo-deny) == "${deny_version%.*}".* ]]; then
    dirname "$(command -v cargo-deny)"
  else
    tool cargo-deny "$deny_version"
  fi
}

[[ $# -gt 0 ]] || set -- build network nextest deny
for part in "$@"; do
  case $part in
    build) build_needs ;;
    network) install missing_for_network "${network_packages[@]}" ;;
    nextest) nextest ;;
    deny) deny ;;
    *) die "usage: setup.sh [build] [network] [nextest] [deny]" ;;
  esac
done
