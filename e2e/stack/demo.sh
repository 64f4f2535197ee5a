#!/usr/bin/env bash
# demo.sh ARGS...: builds quorate and runs `quorate demo ARGS...` with a real etcd, of the minor that --etcd names.
# Everything but the demo's own output goes to stderr, so that `make demo ARGS="--once -o json"` can be read by a program.
# shellcheck source=e2e/stack/lib.sh
source "$(dirname "$0")/lib.sh"

minor=3.6
before=
for argument in "$@"; do
  [[ $before != --etcd ]] || minor=$argument
  [[ $argument != --etcd=* ]] || minor=${argument#--etcd=}
  before=$argument
done

"$stack/setup.sh" build >&2
etcd=$("$stack/etcd.sh" "$minor")
cd "$root"
say "demo: building quorate"
cargo build -p quorate --bin quorate >&2
target=$(target_dir)
# What the build wrote goes to the disk first: in the demo it would show as fsyncs of a second and more.
sync
QUORATE_ETCD_DIR=$etcd exec "$target/debug/quorate" demo "$@"
