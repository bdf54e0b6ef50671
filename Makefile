# Everything by one word. `make test` and `make demo` each do all they need on a fresh Debian 12, as root, with a Rust toolchain.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

export INPLACE_CACHE ?= $(HOME)/.cache/inplace
CRI := $(INPLACE_CACHE)/cri
export INPLACE_CRI_REFERENCE ?= $(CRI)/api.proto
CARGO_TARGET_DIR ?= target
MUSL := x86_64-unknown-linux-musl
STATIC := $(CARGO_TARGET_DIR)/$(MUSL)/release/inplace
DENY := $(INPLACE_CACHE)/bin/cargo-deny
CLUSTER := /tmp/inplace-cluster


FUZZ_SECONDS ?= 20

.PHONY: setup kubernetes build release image check fmt clippy doc deny test fuzz demo cluster cluster-down bench clean

setup: ## installs what is missing and fetches the published CRI definition the tests compare with
	@bash tests/lab/install.sh
	@bash tests/lab/cri-reference.sh "$(CRI)"

kubernetes: setup ## the Kubernetes that the cluster tests run on: built once, about four minutes
	@bash tests/lab/kube.sh

build:
	cargo build --locked

release: setup ## one static binary
	CC_x86_64_unknown_linux_musl=musl-gcc cargo build --locked --release --target $(MUSL)
	@if ldd "$(STATIC)" 2>/dev/null | grep -q '=>'; then echo "$(STATIC) is not static" >&2; exit 1; fi
	@if grep -q INPLACE_FAULT_AT "$(STATIC)"; then echo "$(STATIC) has fault points" >&2; exit 1; fi
	@stat -c '%n: static, no fault points, %s bytes' "$(STATIC)"

image: release ## IMAGE=host/repository:tag: packs the static binary and pushes it, without a Docker engine (see daemonset/image.sh)
	bash daemonset/image.sh "$(STATIC)" "$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"

check: fmt clippy doc deny

fmt:
	cargo fmt --check

clippy:
	cargo clippy --locked --all-targets --all-features -- -D warnings

doc:
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps

# The advisories come from a database on a git host, which is not within reach everywhere: they count where it is. Where they
# did not count, `make test` says so again at its end.
UNCHECKED := $(INPLACE_CACHE)/advisories-not-checked
deny: $(DENY)
	$(DENY) --locked check bans licenses sources
	@rm -f "$(UNCHECKED)"; \
	if timeout 120 $(DENY) fetch db >/dev/null 2>&1; then $(DENY) --locked check --disable-fetch advisories; \
	else echo "advisories: NOT CHECKED, the advisory database cannot be fetched from here" | tee "$(UNCHECKED)"; fi

$(DENY):
	@if command -v cargo-deny >/dev/null; then mkdir -p "$(@D)" && ln -s "$$(command -v cargo-deny)" "$@"; \
	else cargo install --locked cargo-deny --root "$(INPLACE_CACHE)"; fi

test: setup kubernetes check release ## everything that can go wrong, for real
	cargo test --locked --lib --bins --test hermetic
	cargo test --locked --features faults --test node
	cargo test --locked --features faults --test cluster
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=10
	@if [ -e "$(UNCHECKED)" ]; then echo "Not exercised by this run:"; cat "$(UNCHECKED)"; fi

fuzz: ## FUZZ_SECONDS for each fuzz target, on the stable toolchain
	bash fuzz/run.sh "$(CARGO_TARGET_DIR)" "$(FUZZ_SECONDS)"

demo: setup build ## what a restart in place keeps, on a real containerd
	bash tests/lab/demo.sh "$(CARGO_TARGET_DIR)/debug/inplace"

cluster: setup ## a real one-node Kubernetes, to try things on
	@bash tests/lab/cluster.sh up "$(CLUSTER)"
	@. "$(CLUSTER)/env"; printf '%s\n' "Kubernetes runs below $(CLUSTER); its images: $$REGISTRY/app:v1, app:v2, app:v3 ..." \
	  "  export KUBECONFIG=$$KUBECONFIG" "  kubectl run web --image=$$REGISTRY/app:v1" "make cluster-down stops and removes it."

cluster-down: ## and away with it
	@bash tests/lab/cluster.sh down "$(CLUSTER)"

bench: release ## the budgets, side by side in one run; BENCH_QUICK=1 is short, BENCH_LENIENT=1 only tells
	BENCH_AGENT="$(abspath $(STATIC))" cargo bench --locked --bench restart

clean:
	cargo clean
