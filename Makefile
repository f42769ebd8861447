# softrdma. `make help` lists the targets.

GO       ?= go
BIN      := $(CURDIR)/bin
# How often each fuzz target runs, and how long each benchmark does. (Given a time instead, go test now and then ends in
# "context deadline exceeded": its clock cuts off a run that is under way.)
FUZZTIME  ?= 20000x
BENCHTIME ?= 1s
BENCH     ?= .
# Packages to test, and further arguments of test/testrun (-strict, -json FILE) and go test (-short), in that order.
PKGS ?= ./...
ARGS ?=

export CGO_ENABLED = 0

.PHONY: help build test race fuzz bench microbench lint vuln cross lab backends soak corruption lifetimes interop interop-full conformance check ci clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the programs into bin/
	$(GO) build -o $(BIN)/ ./cmd/...

test: ## run every test this host allows; tells what it left out and why
	$(GO) run ./test/testrun $(ARGS) -shuffle=on $(PKGS)

race: ## run the tests with the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) run ./test/testrun $(ARGS) -race -shuffle=on $(PKGS)

fuzz: ## run every fuzz target FUZZTIME times (20000x)
	@out=$$(mktemp); trap 'rm -f $$out' EXIT; \
	$(GO) test -list '^Fuzz' $(PKGS) >$$out || { cat $$out; exit 1; }; \
	awk '/^Fuzz/ {t[n++] = $$1} /^ok/ {for (i = 0; i < n; i++) print $$2, t[i]; n = 0}' $$out | { \
	n=0; while read -r pkg target; do \
		echo "fuzz  $$pkg $$target"; n=$$((n+1)); \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg >$$out 2>&1 || { cat $$out; exit 1; }; \
	done; echo "$$n fuzz targets ran"; test $$n -gt 0; }

bench: build ## compare with the kernel's TCP, UCX and others on one wire (root; ARGS="-quick": a minute)
	$(GO) run ./test/bench -softrdma $(BIN)/softrdma $(ARGS)

microbench: ## run the Go benchmarks that match BENCH for BENCHTIME (1s)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKGS)

lint: $(BIN)/staticcheck ## gofmt, go vet, staticcheck, module files in order
	@test -z "$$(gofmt -l .)" || { gofmt -l . | sed 's/^/gofmt would change /'; exit 1; }
	$(GO) vet ./...
	$(BIN)/staticcheck ./...
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff

vuln: $(BIN)/govulncheck ## look for known vulnerabilities (asks vuln.go.dev)
	$(BIN)/govulncheck ./...

$(BIN)/staticcheck: tools/go.mod
	$(GO) -C tools build -o $@ honnef.co/go/tools/cmd/staticcheck

$(BIN)/govulncheck: tools/go.mod
	$(GO) -C tools build -o $@ golang.org/x/vuln/cmd/govulncheck

# What builds beside linux/amd64: all of it on linux/arm64, what needs no Linux on macOS.
PORTABLE = ./verbs/... ./rdmap ./ddp ./mpa ./netstack ./pktio ./mempool ./cmd/...
cross: ## build and vet for linux/arm64 and darwin/arm64
	GOOS=linux GOARCH=arm64 $(GO) build ./...
	GOOS=linux GOARCH=arm64 $(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) build $(PORTABLE)
	GOOS=darwin GOARCH=arm64 $(GO) vet $(PORTABLE)

lab: build ## run the commands in two network namespaces, on each backend (root)
	test/lab $(BIN)/softrdma

backends: build ## run every backend over IPv4 and IPv6 at several MTUs (root)
	$(GO) run ./test/backends -softrdma $(BIN)/softrdma $(ARGS)

soak: ## mixed traffic over good and bad links on every backend, every octet compared (root)
	$(GO) run ./test/soak matrix $(ARGS)

corruption: ## flip bits that TCP cannot see and account for each (all of it: ARGS="-frames 10000000 -every 10000")
	$(GO) run ./test/corruption -frames 300000 -every 1000 $(ARGS)

lifetimes: ## idle, killed, crowded and cut off connections, for minutes (root)
	$(GO) run ./test/lifetimes $(ARGS)

interop: build ## run against Linux siw in a virtual machine, a part of the matrix (root, Debian)
	$(GO) run ./test/interop -softrdma $(BIN)/softrdma $(ARGS)

interop-full: build ## run the whole matrix against Linux siw, and write docs/interop.md
	$(GO) run ./test/interop -softrdma $(BIN)/softrdma -meet 0 -report docs/interop.md $(ARGS)

# From RESULTS, what make test ARGS='-json FILE' has left, if set: the tests need not run twice.
conformance: ## find the tests of every requirement, run them, and write docs/conformance.md
	$(GO) run ./test/conformance $(if $(RESULTS),-results $(RESULTS)) $(ARGS)

check: lint build cross test race ## what a change must pass; CI runs more
	$(MAKE) fuzz FUZZTIME=5000x
	$(MAKE) microbench BENCHTIME=1x

ci: ## all that CI runs, on a Debian host or container (root)
	.ci/run

clean: ## remove what was built
	rm -rf $(BIN)
