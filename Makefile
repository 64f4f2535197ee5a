# The front door: `make` prints what there is. Each target says what it needs and installs it (e2e/stack/setup.sh).
.DEFAULT_GOAL := help
.PHONY: help setup demo test operations scenarios bad-input test-core sim bench-plan lint fmt gen check-gen etcd clean

# Arguments of the program behind a target, the number of simulated histories, the minors of etcd to build.
ARGS ?=
N ?= 20000
MINORS ?= 3.5 3.6 3.7

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Install what building, testing and linting need (apt for system packages, a cache for the tools)
	@e2e/stack/setup.sh >/dev/null

demo: ## Three sites with a real etcd on this machine: make demo ARGS="--once -o json"
	@e2e/stack/demo.sh $(ARGS)

test: ## Every test, with a real etcd; the last line is JSON. A part: make test ARGS="-E 'test(ballot)'"
	@e2e/stack/test.sh $(ARGS)

operations: ## Every operation on every minor of etcd, with a writer: make operations ARGS="-E 'test(swap)'"
	@e2e/stack/suite.sh operations $(ARGS)

scenarios: ## The failures of the scenario list on every minor: make scenarios ARGS="-E 'test(s41)'"
	@e2e/stack/suite.sh scenarios $(ARGS)

bad-input: ## Trust and bad input against running binaries
	@e2e/stack/suite.sh bad-input $(ARGS)

test-core: ## Only the decisions: under a minute once built
	@tools=$$(e2e/stack/setup.sh build nextest) && PATH="$$tools:$$PATH" cargo nextest run -p quorate-core --all-features $(ARGS)

sim: ## N simulated histories with faults: make sim N=20000 ARGS="--seed 42 --trace"
	@cargo run --release -p quorate-core --features sim --bin quorate-sim -- --histories $(N) $(ARGS)

bench-plan: ## How long the planner takes for a decision
	@cargo run --release -p quorate-core --features sim --bin quorate-bench-plan -- $(ARGS)

lint: ## Format, clippy, licences, banned crates, purity of core, generated files; the last line is JSON
	@e2e/stack/lint.sh $(ARGS)

fmt: ## Format every Rust file
	@cargo fmt --all

gen: ## Write every generated file (CRDs, values schema, reference pages)
	@e2e/stack/gen.sh

check-gen: ## Fail if a generated file is not current
	@e2e/stack/gen.sh --check

etcd: ## Build etcd into the cache: make etcd MINORS="3.5 3.6 3.7"
	@e2e/stack/build.sh $(MINORS)

clean: ## Remove what cargo built here (the cache outside the tree stays)
	@cargo clean
