# Every gate has a target; `make check` is what CI runs.
GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# packages where goroutines meet: the race detector runs on these, and on the pool and the ops of cpu; but for tests of
# tables and plans, which start no goroutine and take the detector long
RACE        := bpe cuda data fit gpu prepare supervise train watch
NORACE      := Match|Rates|Archives|PTX|SmallCards|Choose|Simulated|Replans|LossScale|SplitGives

.PHONY: check test fmt vet static tidy race cross fuzz bench build gpu-bundle kernels

check: fmt vet tidy static cross test race ## everything CI runs

test: ## the README's own test command
	$(GO) test ./...

fmt:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofmt would change: $$bad"; exit 1; }

vet:
	$(GO) vet ./...

static: ## staticcheck, at a fixed version
	$(GO) run $(STATICCHECK) ./...

tidy: ## go.mod and go.sum list what is used, no more
	$(GO) mod tidy -diff

race: ## needs a C compiler; the tests that touch goroutines, under the race detector
	@if ! command -v $${CC:-cc} >/dev/null; then echo "race: no C compiler, skipped"; exit 0; fi; \
	export CGO_ENABLED=1; set -x; \
	$(GO) test -race -short -skip '$(NORACE)' $(RACE:%=./internal/%) && \
	$(GO) test -race -short -run 'Pool|Merge|OpsAgainstReference' ./internal/cpu

cross: ## every system we say we run on compiles without cgo: linux/amd64 as it is shipped, the others not optimised, which is faster
	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 $(GO) build -o /dev/null ./cmd/snug
	@for t in linux/arm64 darwin/arm64 windows/amd64; do \
	  echo "build $$t"; CGO_ENABLED=0 GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build -gcflags='all=-N -l' -o /dev/null ./cmd/snug || exit 1; done

build: ## bin/snug
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/snug ./cmd/snug

FUZZTIME ?= 10s
fuzz: ## each fuzz target for FUZZTIME
	@for pkg in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep ^Fuzz); do \
	  echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; done; done

bench: ## benchmarks, in benchstat's format
	$(GO) test -run '^$$' -bench . -count 5 ./...

gpu-bundle: ## bin/gpu-bundle: snug, the GPU tests, their data and a run script, for a machine with a driver and no Go
	scripts/gpu-bundle bin/gpu-bundle

kernels: ## compiles internal/cuda/kernels with NVRTC, on any machine (PyPI's nvidia-cuda-nvrtc-cu12 has it)
	$(GO) generate ./internal/cuda
