# shellcheck shell=bash
# What the scripts of this folder share. Sourced, never run. It changes nothing outside the cache.

set -euo pipefail
shopt -s inherit_errexit 2>/dev/null || true # without it, set -e stops at the door of $(...); absent in bash 3.2

stack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034 # used by the scripts that source this
root=$(cd "$stack/../.." && pwd)

# Progress and errors go to stderr: stdout belongs to results, which other programs read.
say() { printf '%s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# at_least A B: is version A the same as B, or newer?
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# The cache lies outside the tree: `git clean`, a second checkout and a switch of branch keep what took minutes to build.
cache_dir() { printf '%s' "${QUORATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quorate}"; }

# The first 16 hex digits of the SHA-256 of stdin.
key() {
  if have sha256sum; then sha256sum; else shasum -a 256; fi | cut -c 1-16
}

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# keep NAME COMMAND...: makes the folder NAME of the cache, once. COMMAND fills a new folder beside it, given as its last
# argument, which is then renamed: nobody ever sees half of it. A second caller waits for the first one.
keep() {
  local name=$1 cache
  shift
  cache=$(cache_dir)
  [[ ! -d $cache/$name ]] || return 0
  mkdir -p "$cache"
  (
    if have flock; then
      exec 9>"$cache/.$name.lock"
      if ! flock -n 9; then
        say "$name: another run is making it, waiting"
        flock 9
      fi
      [[ ! -d $cache/$name ]] || exit 0
      rm -rf "$cache/.$name.part".* # left by a run that was killed: we hold the lock, so nobody is using it
    fi
    part=$(mktemp -d "$cache/.$name.part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    "$@" "$part"
    chmod 755 "$part"
    mv "$part" "$cache/$name"
  )
}

# The folder that cargo builds into, whoever decided it (a variable, a config file, or nobody).
target_dir() {
  (cd "$root" && cargo metadata --no-deps --format-version 1) | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}
