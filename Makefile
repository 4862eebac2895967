# Everything works on a bare Debian 12 with root, Go >= 1.25, Node and git: what else is needed, these targets install.
SHELL := /bin/bash
export CGO_ENABLED := 0

DATA      ?= /var/lib/claude-hub/dev
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BINARY    := bin/claude-hub
RUNSC     := bin/runsc
STATIC    := honnef.co/go/tools/cmd/staticcheck@v0.7.0

.PHONY: help run build test lint e2e kill model test-runsc test-vm storm canary bench generate assets deps-run deps-test deps-bench

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

run: deps-run build ## install what the host lacks, build, and start a Hub and a Runner with an example; prints the URL (DATA=folder)
	@exec $(BINARY) dev --data $(DATA)

build: ## build the one static binary
	@go build -trimpath -ldflags "-s -w" -o runner/agent/embedded/claude-hub-agent ./runner/agent/claude-hub-agent
	@go build -tags embed_agent -ldflags "-X github.com/claude-hub/claude-hub/cmd.version=$(VERSION)" -o $(BINARY) .

# How often a package that failed is tested again (scripts/test).
RETRY  ?= 0

test: deps-test lint build ## all tests, a short e2e and a short kill test included (ten minutes on two cores, twenty the first time)
	@CLAUDE_HUB_BINARY=$(abspath $(BINARY)) scripts/test $(RETRY)

test-runsc: deps-test ## the tests of Sandboxes with gVisor as their kernel, in place of the short set that make test has (TESTS=pattern)
	@go test -c -o bin/oci.test ./runner/sandbox/oci
	@cd runner/sandbox/oci && $(CURDIR)/bin/oci.test -runtime $(CURDIR)/$(RUNSC) -test.v -test.timeout 25m -test.run "$(TESTS)" | grep -v '^=== '; exit $${PIPESTATUS[0]}

test-vm: ## the tests of Sandboxes, and Docker in one, under Debian's kernel with AppArmor and cgroups of version 2, in QEMU (TESTS=pattern)
	@scripts/test-vm "$(TESTS)"

lint: ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt-ed:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	@go vet ./...
	@go run $(STATIC) ./...

e2e: deps-test build ## the whole stories through CLI, pages, Chromium, nginx, two Hubs and a GitHub of our own, on SQLite and PostgreSQL
	@CLAUDE_HUB_BINARY=$(abspath $(BINARY)) go test -count=1 -timeout 25m -v ./e2e ./e2e/github -args -long

ROUNDS ?= 50
SEED   ?= 1
kill: deps-test build ## kill -9 of Hub, Runner or both at random moments (ROUNDS=50 SEED=1)
	@go test -c -o bin/kill.test ./e2e/kill
	@CLAUDE_HUB_BINARY=$(abspath $(BINARY)) bin/kill.test -test.timeout 60m -rounds $(ROUNDS) -seed $(SEED)

OPS      ?= 1000
SESSIONS ?= 8
model: deps-test build ## random operations on Sessions and kill -9 of Hub and Runner, against a model of each Workspace's bytes, modes and links (OPS=1000 SESSIONS=8 SEED=1)
	@go test -c -o bin/model.test ./e2e/model
	@CLAUDE_HUB_BINARY=$(abspath $(BINARY)) bin/model.test -test.timeout 60m -ops $(OPS) -sessions $(SESSIONS) -seed $(SEED)

N ?= 10000
storm: deps-test build ## GitHub's deliveries many times, late and in any order, while Hubs are killed (N=10000 SEED=1)
	@go test -c -o bin/storm.test ./e2e/storm
	@CLAUDE_HUB_BINARY=$(abspath $(BINARY)) bin/storm.test -test.timeout 60m -n $(N) -seed $(SEED)

canary: deps-test build ## a Sensitive value in 25 forms in every channel, searched for everywhere, on SQLite and PostgreSQL (four minutes)
	@go test -c -o bin/canary.test ./e2e/canary
	@cd e2e/canary && CLAUDE_HUB_BINARY=$(CURDIR)/$(BINARY) $(CURDIR)/bin/canary.test -test.timeout 20m -long

RUNS ?= 20
bench: deps-bench build ## the figures, as a table (BENCH=boot,wake JSON=file)
	@go test -c -o bin/bench ./e2e/bench
	@CLAUDE_HUB_BINARY=$(CURDIR)/$(BINARY) bin/bench -runs $(RUNS) -only "$(BENCH)" -json "$(JSON)"

generate: ## the protocol's Go code from its .proto (needs protoc)
	@go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
	@go install connectrpc.com/connect/cmd/protoc-gen-connect-go@v1.20.0
	@PATH="$$PATH:$$(go env GOPATH)/bin" go generate ./runner/wire

assets: ## the pages' scripts, bundled from npm into handlers/web/assets, where they are checked in (needs npm)
	@scripts/assets

deps-run:
	@scripts/packages run

deps-test:
	@scripts/packages test
	@scripts/runsc $(RUNSC)

deps-bench:
	@scripts/packages bench
