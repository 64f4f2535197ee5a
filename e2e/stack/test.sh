#!/usr/bin/env bash
# test.sh ARGS...: every test of the workspace: the doc tests, then nextest with a real etcd. The last line on stdout is one
# JSON object with the totals. ARGS go to nextest, to run a part of the tests; without them a skipped test is a failure,
# since a suite that quietly leaves something out proves less than it says.
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"

[[ -z ${CI:-} ]] || export INSTA_UPDATE=no NEXTEST_PROFILE=${NEXTEST_PROFILE:-ci}
[[ ! -t 2 ]] || export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always} # the pipes below would take the colours away

tools=$("$stack/setup.sh" build network nextest)
export PATH="$tools:$PATH"
QUORATE_ETCD_DIR=$("$stack/etcd.sh" --tools 3.6)
export QUORATE_ETCD_DIR
cd "$root"

# The end-to-end tests run the real binary, which a test build alone would not make.
say "test: building"
cargo build --workspace --all-features --bins
QUORATE_BIN=$(target_dir)/debug/quorate
export QUORATE_BIN

log=$(mktemp)
trap 'rm -f "$log"' EXIT
code=0
if [[ $# -eq 0 ]]; then
  say "test: doc tests"
  cargo test --doc --workspace --all-features --no-fail-fast 2>&1 | tee -a "$log" || code=1
fi
say "test: nextest"
cargo nextest run --workspace --all-features "$@" 2>&1 | tee -a "$log" || code=1

# Totals from the lines with which both runners close:
#   test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.50s
#   Summary [   1.200s] 12/15 tests run: 10 passed (1 slow), 2 failed, 1 timed out, 4 skipped
# A test that nextest meant to run and did not reach has failed too.
totals=$(sed $'s/\x1b\\[[0-9;]*m//g' "$log" | awk '
  function number(what) { return match($0, "[0-9]+ " what) ? substr($0, RSTART, RLENGTH) + 0 : 0 }
  /^test result: / {
    passed += number("passed"); failed += number("failed"); skipped += number("ignored")
    if (match($0, "finished in [0-9.]+")) seconds += substr($0, RSTART + 12, RLENGTH - 12)
  }
  /^ *Summary \[ *[0-9.]+s\]/ {
    match($0, "[0-9]+ tests? run:"); run = substr($0, RSTART) + 0
    ok = number("passed"); passed += ok; failed += run - ok; skipped += number("skipped")
    match($0, "[0-9.]+s"); seconds += substr($0, RSTART, RLENGTH - 1)
    if (match($0, "[0-9]+/[0-9]+ tests? run:")) {
      split(substr($0, RSTART), part, "/"); failed += part[2] - part[1]
    }
  }
  END { printf "%d %d %d %.1f\n", passed, failed, skipped, seconds }')
read -r passed failed skipped seconds <<<"$totals"

[[ $failed -eq 0 ]] || code=1
[[ $code -eq 0 || $failed -gt 0 ]] || failed=1 # a runner that failed before any test did, at a compile error for one
if [[ $# -eq 0 && $skipped -gt 0 ]]; then
  say "test: $skipped skipped, which counts as failed"
  code=1
fi
if [[ $passed -eq 0 ]]; then
  say "test: no test passed"
  code=1
fi
printf 'total: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
printf '{"passed":%d,"failed":%d,"skipped":%d,"seconds":%s}\n' "$passed" "$failed" "$skipped" "$seconds"
exit "$code"
