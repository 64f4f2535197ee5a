#!/usr/bin/env bash
# lint.sh [CHECK...]: every check that needs no test run (default: all), one ok or FAIL line each on stdout; what a failed
# check said is on stderr. The last line is one JSON object.
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$root"

rust_files() { find src e2e -name '*.rs' -not -path '*/target/*'; }

check_fmt() { cargo fmt --all --check; }

check_lock_file() { cargo metadata --quiet --locked --format-version 1 >/dev/null; }

check_clippy() { cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings; }

# Advisories are left out: they need a database from the network, and an old commit must not turn red by itself.
check_deny() { cargo deny --log-level warn --all-features check bans licenses sources; }

# ring may stand in the lock file for other targets, but must not be compiled: rustls panics when it finds two providers.
check_one_crypto() {
  local tree
  grep -q '^name = "ring"$' Cargo.lock || return 0
  tree=$(cargo tree --quiet --workspace --all-features --invert ring --edges normal) || return 1
  [[ -z $tree ]] || { echo "$tree"; return 1; }
}

# The compiler forbids it as well, in each crate that inherits the lints: so look that each one does.
check_no_unsafe() {
  local file found=0
  for file in src/*/Cargo.toml e2e/Cargo.toml; do
    grep -A 1 '^\[lints\]' "$file" | grep -q '^workspace = true' || { echo "$file: no [lints] workspace = true"; found=1; }
  done
  ! rust_files | xargs grep -nE '\bunsafe +(fn|impl|trait|extern)\b|\bunsafe *\{|#!?\[unsafe\(|(allow|warn|expect)\(unsafe_code' || found=1
  return "$found"
}

# The decisions stay free of IO, clocks and randomness: no crate that brings them, at any depth.
check_pure_core() {
  local impure='tokio|kube|k8s-openapi|tonic|reqwest|rand|object_store|etcd-client|chrono|jiff|getrandom|mio|hyper'
  local names
  names=$(cargo tree --quiet -p quorate-core --all-features --edges normal --prefix none | cut -d ' ' -f 1 | sort -u) || return 1
  ! grep -xE "$impure" <<<"$names"
}

check_generated() { "$stack/gen.sh" --check; }

check_file_size() {
  local long
  long=$(rust_files | xargs wc -l | awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines, more than 800: split it" }')
  [[ -z $long ]] || { echo "$long"; return 1; }
}

check_scripts() {
  local scripts=() file
  for file in .ci/run e2e/stack/*.sh; do
    bash -n "$file" || return 1
    scripts+=("$file")
  done
  ! have shellcheck || shellcheck --external-sources --source-path="$root" "${scripts[@]}"
}

all=(fmt lock_file file_size no_unsafe scripts pure_core one_crypto deny clippy generated)
[[ $# -gt 0 ]] || set -- "${all[@]}"
for check in "$@"; do
  declare -F "check_$check" >/dev/null || die "no check $check; there are: ${all[*]}"
done

tools=$("$stack/setup.sh" build deny)
export PATH="$tools:$PATH"

failed=()
for check in "$@"; do
  start=$SECONDS
  # Inside a condition set -e does not work: a check has to return its failures, each one.
  if output=$("check_$check" 2>&1); then
    printf 'ok    %-11s %3d s\n' "$check" $((SECONDS - start))
  else
    printf 'FAIL  %-11s %3d s\n' "$check" $((SECONDS - start))
    printf '%s\n' "$output" | sed 's/^/      /' >&2
    failed+=("$check")
  fi
done

if [[ ${#failed[@]} -eq 0 ]]; then
  printf '{"lint":"ok","checks":%d,"failed":[]}\n' $#
else
  names=$(printf '"%s",' "${failed[@]}")
  printf '{"lint":"failed","checks":%d,"failed":[%s]}\n' $# "${names%,}"
  exit 1
fi
