# Everything a person or CI does with this repository. What a target needs and
# the machine has not is installed into .parts/, pinned by hash or version.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO       ?= go
PYTHON   ?= python3
PARTS    := .parts
KEYWAY   := bin/keyway
LINT     := $(GO) tool -modfile=tools/go.mod golangci-lint
BUF      := $(PARTS)/buf/bin/buf
GEN_GO   := $(PARTS)/bin/protoc-gen-go
# The protobuf plugin goes with the runtime in go.mod.
GEN_GO_VERSION := v1.36.12

# The race detector needs a C compiler; without one the tests run all the same.
RACE := $(if $(shell command -v gcc || command -v clang || command -v cc),-race,)
# Tests stop, flush and kill their stores, so they never get one that is in use.
TEST_ENV := env -u KEYWAY_REDIS_URL
# Packages whose tests run real processes and SDKs end to end, without the race
# detector: built with it, the SDKs alone take minutes to compile.
E2E := keyway/e2e keyway/e2e/sdk keyway/e2e/sdk/gosdk
# Judges milliseconds of real servers: nothing is compiled or tested beside it.
ALONE := keyway/store
# What goes from a client to a provider, which channels of native egress do in
# their own way: the tests of it run in both forms.
DATA_PATH := ^Test(AccountHeaders|AllChannelsFail|AnswersPass|AnyCarrier|BodiesSurvive|Case0(03|08|1[0137]|4[027]|68|71|7[78]|8[25])|Corpus$$|ProvidersHeaders|Sound|UnreadAnswers|ChannelWithout|ClientsCannot|Framings|LeavingIs|MessagesAnd|NextChannel|NothingThat|OddAnswers|OfficialSDKs$$|OnlyTheInjected|RawPaths|StoredResponsesGo|StormOnHalf|UsageIsRead)
# The linters look at all that vet does, and more.
VET := -vet=off
FUZZTIME ?= 20s
CHAOS    ?= 5m
DRIFTS   ?= 1000
SILENCE  ?= 120s
SOAK     ?= 10m
STREAMS  ?= 4000
FOR      ?= 60s
WAYS     ?= .
STREAMS_REPORT ?= docs/benchmarks-streams.md

.PHONY: help up build parts test unit fuzz fuzz-splitter fuzz-peek fuzz-usage fuzz-judge fuzz-parts compile-e2e e2e native chaos drills silence soak bench bench-store bench-streams corpus lint fmt generate check ci

help: ## Show what can be made.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: build ## Run everything on this machine, with a demo key; Ctrl-C stops it.
	@exec $(KEYWAY) up $(ARGS)

build: ## Build bin/keyway.
	@mkdir -p bin
	@$(GO) build -o $(KEYWAY) ./cmd/keyway

parts: build ## Find or install Envoy and a store server for the tests.
	@$(TEST_ENV) $(KEYWAY) parts --parts-dir $(PARTS)

test: parts unit ## Run all tests: unit, fuzz, end to end.
	@# The SDKs take long to compile, and fuzzing is told by the clock when to end.
	@$(MAKE) -j2 fuzz compile-e2e
	@$(MAKE) e2e

compile-e2e:
	@$(GO) test $(VET) -exec true $(E2E) >/dev/null

unit: ## Run the unit tests, with the race detector.
	@if [ -z "$(RACE)" ]; then echo "no C compiler: the unit tests run without the race detector" >&2; [ "$${CI:-}" != true ]; fi
	$(TEST_ENV) $(GO) test $(RACE) $(VET) -shuffle=on -count=1 -timeout 8m \
	  $$($(GO) list ./... | grep -vxF -e '' $(addprefix -e ,$(E2E) $(ALONE)))
	$(TEST_ENV) $(GO) test $(RACE) $(VET) -shuffle=on -count=1 -timeout 8m $(ALONE)

fuzz: ## Fuzz the SSE splitter, the request reader, the readers of usage, failures and forms.
	@$(MAKE) -j5 fuzz-splitter fuzz-peek fuzz-usage fuzz-judge fuzz-parts

# One worker each: together they keep two cores busy.
FUZZ := $(GO) test $(VET) -parallel 1 -run '^$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 100x
fuzz-splitter:
	$(FUZZ) -fuzz '^FuzzSplitter$$' ./wire/sse
fuzz-peek:
	$(FUZZ) -fuzz '^FuzzPeek$$' ./wire
fuzz-usage:
	$(FUZZ) -fuzz '^FuzzUsage$$' ./wire
fuzz-judge:
	$(FUZZ) -fuzz '^FuzzJudge$$' ./wire
fuzz-parts:
	$(FUZZ) -fuzz '^FuzzParts$$' ./wire/multipart

# Most of these wait more than they work, so more run at once than there are cores.
e2e: parts ## Run the tests on the real Envoy, a real store and the real SDKs.
	$(TEST_ENV) $(GO) test $(VET) -count=1 -timeout 20m -parallel 4 $(E2E)

native: parts ## Run the tests of the data path once more, over native egress.
	$(TEST_ENV) $(GO) test $(VET) -count=1 -timeout 20m -parallel 4 -run '$(DATA_PATH)' ./e2e -egress native

chaos: parts ## Run the chaos test for CHAOS (5m).
	$(TEST_ENV) $(GO) test -count=1 -timeout 60m -run '^TestChaos$$' -v ./e2e -chaos $(CHAOS)

drills: parts ## End DRIFTS (1000) requests in each way, kills included; nothing may drift.
	$(TEST_ENV) $(GO) test -count=1 -timeout 30m -run '^(TestCase050|TestDrills)$$' -v ./e2e -drifts $(DRIFTS)

silence: parts ## Let providers be silent for SILENCE (120s) in real time.
	$(TEST_ENV) $(GO) test -count=1 -timeout 60m -run '^TestCase02[13]' -v ./e2e -silence $(SILENCE)

soak: parts ## Send a mixed load for SOAK (10m; slopes are judged from 5m); no process may grow.
	$(TEST_ENV) $(GO) test -count=1 -timeout 0 -run '^TestCase097Soak$$' -v ./e2e -soak $(SOAK)

bench: parts ## Measure against bare Envoy; figures go to docs/benchmarks.md.
	$(TEST_ENV) $(GO) test -run '^$$' -bench '^BenchmarkGateway$$' -benchtime 1x -count=1 -timeout 60m ./e2e/bench

bench-streams: parts ## Hold STREAMS (4000) streams for FOR (60s) in each of WAYS (all); figures go to STREAMS_REPORT.
	ulimit -n $$(ulimit -Hn); $(TEST_ENV) $(GO) test -run '^$$' -bench '^BenchmarkStreams$$/($(WAYS))' -benchtime 1x -count=1 -timeout 90m \
	  ./e2e/bench -streams $(STREAMS) -for $(FOR) -report-streams $(abspath $(STREAMS_REPORT))

bench-store: parts ## Measure the store alone; figures go to docs/benchmarks-store.md.
	$(TEST_ENV) $(GO) test -run '^$$' -bench '^BenchmarkStore$$' -benchtime 1x -count=1 -timeout 30m ./store -report ../docs/benchmarks-store.md

corpus: ## Measure prompt estimates against o200k, on texts of this machine.
	cd tools/corpus && $(GO) test -count=1 -v .

lint: ## Run the linters.
	$(LINT) run ./...

fmt: ## Format the code.
	$(LINT) fmt ./...

generate: $(BUF) $(GEN_GO) ## Regenerate what is made from other files: protobuf, docs/metrics.md.
	PATH="$(abspath $(PARTS)/bin):$$PATH" $(BUF) generate
	$(GO) test -count=1 -run '^TestMetricsDocument$$' ./cmd/keyway -update

check: $(BUF) $(GEN_GO) ## Check that generated code is current and everything is formatted.
	@$(BUF) lint
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	  PATH="$(abspath $(PARTS)/bin):$$PATH" $(BUF) generate -o "$$fresh" && \
	  for file in $$(cd "$$fresh" && find . -name '*.pb.go'); do \
	    diff -u "$$file" "$$fresh/$$file" || { echo "$$file is not current: make generate" >&2; exit 1; }; done
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l) && \
	  { [ -z "$$unformatted" ] || { echo "not formatted: make fmt"; echo "$$unformatted"; exit 1; } >&2; }
	@echo "generated code is current and the code is formatted"

ci: check test native corpus lint ## Do what CI does.

$(BUF): tools/buf.txt
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
	  --upgrade --target $(PARTS)/buf -r tools/buf.txt
	@touch $@

$(GEN_GO):
	@GOBIN=$(abspath $(PARTS)/bin) $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@$(GEN_GO_VERSION)
