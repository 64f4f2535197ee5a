#!/usr/bin/env bash
# gen.sh [--check]: writes every generated file (CRDs, values schema, reference pages) into the tree. With --check it writes
# them into a temporary folder instead and fails with the difference if the tree holds anything else.
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"

"$stack/setup.sh" build >&2
cd "$root"
generate() { cargo run --quiet -p quorate --bin quorate -- generate --out "$1"; }

if [[ ${1:-} != --check ]]; then
  generate .
  exit
fi

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
generate "$fresh" >&2
stale=0 count=0
while read -r file; do
  count=$((count + 1))
  diff -u --label "$file (in the tree)" --label "$file (generated)" "$file" "$fresh/$file" || stale=$((stale + 1))
done < <(cd "$fresh" && find . -type f | sed 's|^\./||' | sort)
[[ $count -gt 0 ]] || die "quorate generate wrote nothing"
[[ $stale -eq 0 ]] || die "$stale of $count generated files are not current: run make gen, and commit the result"
say "gen: $count generated files are current"
