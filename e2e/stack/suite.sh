#!/usr/bin/env bash
# suite.sh SUITE ARGS...: all cases of operations, scenarios or bad-input, on etcd 3.5, 3.6 and 3.7. The last line on stdout is
# one JSON object. ARGS go to nextest, to run a part: suite.sh scenarios -E 'test(s41)'. QUORATE_MINORS names fewer minors,
# QUORATE_JOBS how many cases run beside each other.
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"

suite=$1
shift
[[ $(id -u) -eq 0 ]] || die "$suite: network namespaces need root"
tools=$("$stack/setup.sh" build nextest network)
export PATH="$tools:$PATH"
cd "$root"
say "$suite: building"
cargo build -p quorate -p quorate-e2e --all-features --bins >&2
target=$(target_dir)
minors=${QUORATE_MINORS:-3.5,3.6,3.7}
for minor in ${minors//,/ }; do
  "$stack/etcd.sh" --tools "$minor" >/dev/null
done
unset QUORATE_ETCD_DIR

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export QUORATE_BIN=$target/debug/quorate QUORATE_SUITE=full QUORATE_RESULTS=$results
code=0
cargo nextest run -p quorate-e2e --all-features --test "${suite//-/_}" --profile suite \
  --test-threads "${QUORATE_JOBS:-2}" "$@" >&2 || code=1
"$target/debug/quorate-suite" "$suite" "$results" || code=1
exit "$code"
