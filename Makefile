# Everything a developer runs. `make help` lists it.
#
# Needs Go, gcc, make and python3. Everything else is fetched or built below: Go modules by Go,
# linters into build/tools. No CUDA SDK.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

# Targets of this file run one after the other; -j reaches the makefiles of the C parts.
.NOTPARALLEL:

GO      ?= go
PYTHON  ?= python3
DIST    := dist
QUIET   := $(if $(V),,--silent) # make V=1 shows what the makefiles of the C parts run
TOOLS   := $(CURDIR)/build/tools

GOLANGCI_LINT := $(TOOLS)/golangci-lint-2.15.0

# -s -w: no symbol table and no DWARF. Panics still print function names and lines.
GO_LDFLAGS     := -s -w
ENGINE_LDFLAGS := $(GO_LDFLAGS) -extldflags "-Wl,--version-script=$(CURDIR)/cmd/libebb/exports.map"

# The end-to-end tests and those of clusters use the libraries in dist/ and run by themselves, after the others.
GO_UNIT = $$($(GO) list ./... | grep -vE '/test/(e2e|clusters)$$')

##@ Build

.PHONY: build
build: softgpu shim engine cli bench-rank programs ## build everything into dist/ (the default)
	@echo "dist/ is up to date"

.PHONY: softgpu
softgpu: ## the software CUDA driver: dist/lib/softgpu
	@$(MAKE) $(QUIET) -C softgpu

.PHONY: shim
shim: ## the preloaded C library: dist/lib/libebb.so
	@$(MAKE) $(QUIET) -C shim

# Go decides what is out of date, by content, but does not look into the export map. The header
# that Go writes stays in build/: the contract is abi/ebb_engine.h. install -C leaves an unchanged
# library alone, and replaces a changed one by a new file, so that processes that have the old one
# mapped go on.
.PHONY: engine
engine: ## the Go engine: dist/lib/libebb-engine.so
	@mkdir -p build/engine $(DIST)/lib
	@if [[ cmd/libebb/exports.map -nt build/engine/libebb-engine.so ]]; then rm -f build/engine/libebb-engine.so; fi
	@CGO_ENABLED=1 $(GO) build -trimpath -buildmode=c-shared -ldflags='$(ENGINE_LDFLAGS)' -o build/engine/libebb-engine.so ./cmd/libebb
	@install -C -m 0755 build/engine/libebb-engine.so $(DIST)/lib/libebb-engine.so

.PHONY: cli
cli: ## the command: dist/bin/ebb
	@mkdir -p $(DIST)/bin
	@CGO_ENABLED=1 $(GO) build -trimpath -ldflags='$(GO_LDFLAGS)' -o $(DIST)/bin/ebb ./cmd/ebb

.PHONY: bench-rank
bench-rank: ## the process that ebb bench measures: dist/libexec/ebb/ebb-bench-rank
	@$(MAKE) $(QUIET) -C bench

.PHONY: programs
programs: softgpu ## the demo's programs
	@$(MAKE) $(QUIET) -C examples/demo
	@mkdir -p $(DIST)/bin
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags='$(GO_LDFLAGS)' -o $(DIST)/bin/ebb-demo ./examples/demo

.PHONY: ptx
ptx: ## compile the GPU kernel after its source changed (internal/device/cuda)
	@$(PYTHON) scripts/make-ptx.py

.PHONY: wheel
wheel: shim engine cli ## the Python package with the libraries and the command: dist/ebb-*.whl
	@PYTHON=$(PYTHON) scripts/build-wheel.sh

##@ Run

.PHONY: demo
demo: build ## train, park and resume on this machine, without a GPU (under a minute)
	@$(DIST)/bin/ebb-demo

.PHONY: demo-gpu
demo-gpu: build ## the same with PyTorch on this machine's GPU
	@$(PYTHON) examples/demo/demo_gpu.py

##@ Test

.PHONY: test
test: build vet test-go test-c test-python test-e2e ## every test that needs no GPU
	@echo "make test: all passed"

.PHONY: vet
vet:
	$(GO) vet ./...

.PHONY: test-go
test-go: softgpu ## Go unit tests under the race detector
	$(GO) test -race -timeout 30m $(GO_UNIT)

.PHONY: test-c
test-c: softgpu ## tests of softgpu and shim: plain, AddressSanitizer, ThreadSanitizer
	$(MAKE) --silent -C softgpu test test-asan test-tsan 2>&1 | scripts/count-tests.sh softgpu
	$(MAKE) --silent -C shim test test-asan test-tsan 2>&1 | scripts/count-tests.sh shim

.PHONY: test-python
test-python: softgpu shim engine cli ## the Python package: tests over softgpu, installing it; every file compiles
	$(PYTHON) scripts/check_python.py

.PHONY: test-e2e
test-e2e: build ## whole processes under the real libraries, over softgpu
	$(GO) test -count=1 -timeout 30m ./test/e2e

# The packages in which EBB_TEST_LONG makes the random and kill tests long; make test has the others. Each
# of these tests prints the seed that repeats it.
GO_LONG = $$(grep -rl --include='*_test.go' EBB_TEST_LONG ./cmd ./internal ./examples ./test | xargs -n 1 dirname | sort -u | grep -vE '/test/(e2e|clusters|arch)$$')

# Thousands of failures, some in a process each: make test has samples of them under the race detector.
SWEEPS := ^(TestEveryOperationOfAPauseAndAResumeFailsOnce|TestWorkOfTheDeviceThatFails)$$

.PHONY: test-long
test-long: export EBB_TEST_LONG = 1
test-long: build ## long forms of the random and kill tests; prints their seeds
	$(GO) test -race -count=1 -timeout 30m -v -skip '$(SWEEPS)' $(GO_LONG) 2>&1 | scripts/summarise-tests.sh
	$(GO) test -count=1 -timeout 30m -v -run '$(SWEEPS)' ./internal/engine 2>&1 | scripts/summarise-tests.sh
	$(GO) test -count=1 -timeout 40m -v ./test/e2e 2>&1 | scripts/summarise-tests.sh
	$(PYTHON) scripts/check_python.py test_optim_order test_optim_interrupted
	$(MAKE) test-clusters
	@echo "make test-long: all passed"

.PHONY: test-clusters
test-clusters: export EBB_TEST_LONG = 1
test-clusters: build ## Slurm, Ray, Kubernetes' types and launchers, installed as needed; skips what cannot be installed
	$(GO) test -count=1 -timeout 30m -v ./test/clusters 2>&1 | scripts/summarise-tests.sh
	@cd test/k8s && { if [[ $${EBB_TEST_CLUSTERS-} != all ]] && ! $(GO) mod download; then echo "--- SKIP: test/k8s: the modules of Kubernetes cannot be downloaded"; else $(GO) test -count=1 -timeout 20m -v ./... 2>&1; fi; } | ../../scripts/summarise-tests.sh

.PHONY: soak
soak: build ## random actors and faults for SOAK seconds (1800); prints its seed and a table
	SOAK=$${SOAK:-1800} $(GO) test -count=1 -timeout 0 -v -run '^TestSoak$$' ./test/e2e

.PHONY: fuzz
fuzz: softgpu ## every fuzz target, each for FUZZTIME (5s)
	@scripts/fuzz.sh

.PHONY: gpu-wheels
gpu-wheels: ## fetch torch_memory_saver, vLLM's allocator and megatron-core, for test-gpu.sh without a network
	@mkdir -p build/wheels
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux2014_x86_64 --python-version 3.12 --dest build/wheels torch-memory-saver==0.0.10
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 --python-version 3.12 --dest build/wheels megatron-core==0.16.1
	PYTHON=$(PYTHON) scripts/fetch-vllm-allocator.sh

.PHONY: bench
bench: build ## cost of the preloaded library in processes that use no GPU, and of each call that it hooks
	scripts/bench-preload.sh
	shim/tests/bench-calls.sh

##@ Check

.PHONY: lint
lint: lint-go lint-c lint-shell lint-python ## formatting and linters

.PHONY: lint-go
lint-go: $(GOLANGCI_LINT)
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	if [[ -n $$unformatted ]]; then echo "not formatted (gofmt -w):"; echo "$$unformatted"; exit 1; fi
	$(GOLANGCI_LINT) run --allow-serial-runners ./...

# Warnings are errors in these makefiles.
.PHONY: lint-c
lint-c: softgpu shim bench-rank

.PHONY: lint-shell
lint-shell:
	scripts/lint-shell.sh

.PHONY: lint-python
lint-python:
	scripts/lint-python.sh

$(GOLANGCI_LINT):
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) scripts/again.sh $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	@mv $(TOOLS)/golangci-lint $@

.PHONY: clean
clean: ## remove everything that was built
	rm -rf dist build

.PHONY: help
help: ## this list
	@awk 'BEGIN { FS = ":.*##" } \
		/^##@/ { printf "\n%s\n", substr($$0, 5); next } \
		/^[a-z0-9-]+:.*##/ { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
