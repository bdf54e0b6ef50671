# The commands of the project. `make test`, `make demo` and `make bench` install everything they need on a fresh Debian 12, as root,
# with a Rust toolchain. `make release`, `make image` and `make dist` install nothing, and name what is missing.
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

.PHONY: setup helm kubernetes build release other-targets arm64 image-tools image dist dist-again push check fmt clippy doc deny reference test build-tests hermetic node repeat coverage fuzz mutants demo cluster cluster-down soak matrix bench scale pictures clean

setup: ## installs missing packages and fetches the published CRI definition for the tests
	@bash tests/lab/install.sh
	@bash tests/lab/cri-reference.sh "$(CRI)"

helm: setup ## fetches Helm, once, for the tests of the chart
	@bash tests/lab/helm.sh >/dev/null

kubernetes: setup ## builds the Kubernetes of the cluster tests, once, in about four minutes
	@bash tests/lab/kube.sh

build:
	cargo build --locked

release: ## builds the static binary
	@bash dist/build.sh amd64 >/dev/null

image-tools:
	@bash dist/needs.sh skopeo python3

image: image-tools release ## packs the static binary and pushes it as IMAGE=host/repository:tag, without Docker (see daemonset/image.sh)
	bash daemonset/image.sh "$(STATIC)" "$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"

dist: ## makes everything that a release has, in target/dist (see dist/dist.sh)
	@bash dist/dist.sh "$(CARGO_TARGET_DIR)/dist"

dist-again: ## makes the files of target/dist once more, from a clone in another folder, and compares (see dist/again.sh)
	@bash dist/again.sh "$(CARGO_TARGET_DIR)/dist"

push: ## pushes the image, its lists of components and the chart of target/dist (see dist/push.sh)
	@bash dist/push.sh "$(CARGO_TARGET_DIR)/dist"

check: fmt clippy doc deny

fmt:
	cargo fmt --check

clippy:
	cargo clippy --locked --all-targets --all-features -- -D warnings

doc:
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps

# The advisories come from a database on a git host, which cannot be reached from every machine. If it can be reached, the
# advisories are checked. If not, `make test` reports at its end that they were not.
UNCHECKED := $(INPLACE_CACHE)/advisories-not-checked
# The fuzz targets are a crate of their own, which has a lock file too.
deny: $(DENY)
	@cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	$(DENY) --locked check bans licenses sources
	@rm -f "$(UNCHECKED)"; \
	if timeout 120 $(DENY) fetch db >/dev/null 2>&1; then $(DENY) --locked check --disable-fetch advisories; \
	else echo "advisories: NOT CHECKED, the advisory database cannot be fetched from here" | tee "$(UNCHECKED)"; fi

$(DENY):
	@if command -v cargo-deny >/dev/null; then mkdir -p "$(@D)" && ln -s "$$(command -v cargo-deny)" "$@"; \
	else CARGO_PROFILE_DEV_DEBUG=false cargo install --locked --debug cargo-deny --root "$(INPLACE_CACHE)"; fi

# Where Rust's libraries for other targets cannot be had, `make test` reports at its end that these were not exercised.
OTHER_UNTESTED := $(INPLACE_CACHE)/other-targets-not-exercised
ARM64 := $(abspath $(CARGO_TARGET_DIR))/other-targets/aarch64-unknown-linux-musl/release/inplace
other-targets: setup ## builds the program for arm64, and checks the command line tool for macOS and Windows
	@nice -n 19 bash tests/lab/other-targets.sh "$(OTHER_UNTESTED)"

ARM64_TESTS = if [ ! -e "$(OTHER_UNTESTED)" ]; then \
  INPLACE_TEST_PROGRAM="qemu-aarch64-static $(ARM64)" cargo test --locked --features faults --test node -- restart:: clone::a_plain; fi
arm64: other-targets ## runs tests of a real containerd with the program for arm64, under an emulator
	@$(ARM64_TESTS)

# Builds and checks have long steps for one processor, and tests mostly wait: two of each at a time.
TWO := $(MAKE) --no-print-directory --jobs 2 --output-sync
STEP = @date '+%T: $(1)'
test: setup helm kubernetes ## all checks and tests: hermetic, on a real containerd, on a real Kubernetes
	$(call STEP,checks and builds)
	+@$(TWO) check release build-tests
	$(call STEP,hermetic and node tests)
	+@$(TWO) hermetic node
	$(call STEP,other targets)
	+@$(TWO) other-targets
	@$(ARM64_TESTS)
	$(call STEP,cluster tests)
	@bash tests/lab/cluster-tests.sh
	$(call STEP,the end)
	@for report in "$(UNCHECKED)" "$(OTHER_UNTESTED)"; do if [ -e "$$report" ]; then echo "Not exercised by this run:"; cat "$$report"; fi; done

build-tests: ## builds the tests
	cargo test --locked --features faults --lib --bins --test hermetic --test node --test cluster --no-run

hermetic: ## runs the tests that need nothing
	cargo test --locked --features faults --lib --bins --test hermetic -- --test-threads 8

node: ## runs the tests on a real containerd
	cargo test --locked --features faults --test node

repeat: setup helm kubernetes ## runs suites RUNS times, all suites of a round at once: RUNS=20 SUITES="hermetic node", or cluster
	@bash tests/lab/repeat.sh $(or $(RUNS),20) $(or $(SUITES),hermetic node)

coverage: setup helm kubernetes ## counts the lines of src that suites execute, by folder: SUITES="hermetic node"; needs a build of its own
	@bash tests/lab/coverage.sh "$(CARGO_TARGET_DIR)" $(or $(SUITES),hermetic node)

reference: ## writes the generated pages of docs/reference
	INPLACE_WRITE_REFERENCE=1 cargo test --locked --bin inplace --test hermetic reference_of

pictures: setup ## draws the pictures of the dashboard and of the terminal in docs/images, with Chromium
	INPLACE_WRITE_PICTURES=1 cargo test --locked --features faults --test hermetic pictures_of -- --test-threads 1

fuzz: ## runs each fuzz target for FUZZ_SECONDS, on the stable toolchain
	bash fuzz/run.sh "$(CARGO_TARGET_DIR)" "$(FUZZ_SECONDS)"

# Each change costs a build of the unit tests: all of them take days. The sources are changed in a copy.
mutants: ## changes decisions and lists the changes that no unit test notices: FILES="src/operation/next.rs ..." SHARD=3/40; needs cargo-mutants
	cargo mutants $(foreach file,$(or $(FILES),src/operation/**/*.rs src/podtask/**/*.rs src/hook/**/*.rs),--file '$(file)') \
	  $(if $(SHARD),--shard $(SHARD) --sharding round-robin) --jobs 1 --timeout 300 --features faults --cargo-arg=--locked \
	  --output "$(CARGO_TARGET_DIR)" -- --lib

demo: setup build ## shows what a restart in place preserves, on a real containerd
	bash tests/lab/demo.sh "$(CARGO_TARGET_DIR)/debug/inplace"

cluster: setup ## starts a real one-node Kubernetes for experiments
	@bash tests/lab/cluster.sh up "$(CLUSTER)"
	@. "$(CLUSTER)/env"; printf '%s\n' "Kubernetes runs below $(CLUSTER); its images: $$REGISTRY/app:v1, app:v2, app:v3 ..." \
	  "  export KUBECONFIG=$$KUBECONFIG" "  kubectl run web --image=$$REGISTRY/app:v1" "make cluster-down stops and removes it."

cluster-down: ## stops and removes the Kubernetes of `make cluster`
	@bash tests/lab/cluster.sh down "$(CLUSTER)"

bench: setup release ## measures the performance budgets in one run; BENCH_QUICK=1 is short, BENCH_LENIENT=1 only reports
	BENCH_AGENT="$(abspath $(STATIC))" cargo bench --locked --bench restart

MINUTES ?= 60
SEED ?= 1
soak: setup kubernetes ## random operations under random faults on two nodes: MINUTES=60 SEED=1, OPERATIONS=10000 ends it earlier (docs/soak.md)
	INPLACE_SOAK_MINUTES=$(MINUTES) INPLACE_SOAK_SEED=$(SEED) $(if $(OPERATIONS),INPLACE_SOAK_OPERATIONS=$(OPERATIONS)) \
	  INPLACE_SOAK_REPORT="$(abspath $(CARGO_TARGET_DIR))/soak-$(SEED).json" \
	  cargo test --locked --features faults --test cluster soak::random -- --nocapture

RELEASES ?= bookworm trixie forky
matrix: setup kubernetes release ## the node and cluster tests on the containerd of several releases of Debian; MATRIX_CLUSTER=all|"names"
	bash tests/lab/matrix.sh docs/compatibility $(RELEASES); status=$$?; $(MAKE) --no-print-directory reference && exit $$status

PODS ?= 10000
FOREIGN ?= 20000
NODES ?= 500
GROUP ?= 5000
scale: setup kubernetes release ## the cost for API server and controller, on played nodes: PODS=10000 FOREIGN=20000 NODES=500 GROUP=5000; SCALE_LENIENT=1 asserts no times (docs/scale.md)
	INPLACE_SCALE_PODS=$(PODS) INPLACE_SCALE_FOREIGN=$(FOREIGN) INPLACE_SCALE_NODES=$(NODES) INPLACE_GROUP_PODS=$(GROUP) \
	  $(if $(filter-out 0,$(SCALE_LENIENT)),,INPLACE_SCALE_TIMES=1) \
	  cargo test --locked --profile scale --features faults --test cluster scale:: -- --nocapture --test-threads 1

clean:
	cargo clean
