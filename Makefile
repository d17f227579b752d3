SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tools are built once for each set of versions.
CACHE    := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fingerpost
TOOLS    := $(CACHE)/$(shell cat tools/lint/go.mod tools/lint/go.sum <(go version) | sha256sum | cut -c1-16)/lint
MODULES  := . e2e e2e/kube tools
PKGS     ?= ./...
ARGS     ?=
VERSION  ?= $(shell git describe --tags --always --dirty)
IMAGE    ?= ghcr.io/fingerpost/fingerpost
ENGINE   ?= $(firstword $(shell command -v docker podman buildah))
FUZZTIME ?= 1m

# As the binary is built. What binary, tests, linters and control planes have in common is then compiled once; the race
# detector and Vale need a C compiler, and set it.
export CGO_ENABLED := 0

##@ Use

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/fingerpost, static
	go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/fingerpost

# Both architectures, to a registry: with docker ARGS='--platform linux/amd64,linux/arm64 --push'. Podman and buildah do not push, and put a
# tag on one image only: ARGS='--platform linux/amd64,linux/arm64 --manifest NAME', and then podman manifest push --all NAME docker://...;
# those of Debian 12 need --build-arg BUILDPLATFORM=linux/amd64 as well. DOCKER_BUILDKIT=1 is for old Dockers.
.PHONY: image
image: ## Build the image, with docker, podman or buildah, for this architecture (for both, see the Makefile)
	@[ -n "$(ENGINE)" ] || { echo 'make image: neither docker nor podman nor buildah is installed' >&2; exit 1; }
	DOCKER_BUILDKIT=1 $(ENGINE) build --build-arg VERSION=$(VERSION) --tag $(IMAGE):$(VERSION) $(ARGS) .

.PHONY: demo
demo: ## Watch three real control planes being linked, cut off and healed (ARGS=--memory: without a build; --once: check each step)
	@go run -C e2e ./demo $(ARGS)

.PHONY: release
release: ## Make a release in dist: binaries, SBOMs, an image of two architectures, charts, checksums (ARGS='-tag v1.2.3')
	rm -rf dist
	go run -C tools ./release -root $(CURDIR) -out $(CURDIR)/dist $(ARGS)

##@ Check

# Go remembers that a test has passed, and knows nothing of files outside of the test's module, which charts and the server are: -count 1.
# The first three wait for compilers, linkers and each other's locks: two at a time take less. Control planes
# run after them: API servers beside compilers answer after seconds.
.PHONY: test
test: ## Run all tests
	@$(MAKE) --no-print-directory --jobs 2 test-short test-long test-tools
	@$(MAKE) --no-print-directory --jobs 2 test-e2e test-demo

# With -short the long tests have fewer rounds, the image is not built, and the drills of the alerts are left to test-tools.
.PHONY: quick
quick: ## Run all tests that need no control plane, without the race detector: under a minute, once compiled
	go test -short $(PKGS)

# One processor for each test process: on two, a channel of a timer that has fired in a bubble of synctest may be read while the bubble
# runs other timers, both with one state of the race detector, which then ends the process (golang/go#78156). A race is found by what orders
# two accesses, not by their time, so it shows on one as well; and the packages run beside each other, the longest from the start.
.PHONY: test-short
test-short: ## Run unit, property and scenario tests
	CGO_ENABLED=1 go test -race -cpu 1 -short -timeout 40m ./cmd/fingerpost/app $(PKGS)

# A law that is broken breaks in some of many rounds, a race shows in few, and the race detector makes each round ten times slower. So the
# long tests run with few rounds under the detector, and with all of them without it. Each commit plays histories that
# none before it has played, and always the same: its first seed follows from its number.
.PHONY: test-long
test-long: SEED = $(shell echo $$((60 * $$(git rev-list --count HEAD 2>/dev/null || echo 1))))
test-long: ## Run the tests that have many rounds, with all of them
	go test -timeout 40m ./cluster ./cluster/ruleobject ./discovery/linkerd ./federation ./internal/repo
	go test -timeout 40m -run '^(TestSim|TestSimPolicy|TestMatrix)$$' ./cmd/fingerpost/app -seed $(SEED) -histories 60

# Other histories each time: -count 1.
.PHONY: sim
sim: ## Play random histories of the whole system on virtual time (ARGS='-seed N -histories 1': replay)
	go test -count 1 -timeout 24h -run '^(TestSim|TestSimPolicy)$$' ./cmd/fingerpost/app $(ARGS)

.PHONY: test-tools
test-tools: ## Lint and render the charts, test their alerts, make a release, and ask k3d about the files of its kit, without Docker
	go test -C tools -count 1 -timeout 40m ./...
	go test -C tools/lint ./...

# Three packages run at a time, each with control planes of its own: they wait more than they compute, and pass on two cores with as much work
# beside. The longest are first, so that none of them is left alone. Before any of it everything is compiled.
LONGEST := ./live ./hostile ./controlplane ./slices

.PHONY: test-e2e test-e2e-race test-demo e2e-tools
test-e2e: build e2e-tools ## Run the tests on real control planes, with the binary that users get
	FINGERPOST_BINARY=$(CURDIR)/bin/fingerpost go test -C e2e -p 3 -count 1 -timeout 30m $(LONGEST) ./...

test-demo: e2e-tools ## Play the demo once, on real control planes, and check each step
	go run -C e2e ./demo --once >/dev/null

test-e2e-race: export CGO_ENABLED := 1
test-e2e-race: e2e-tools ## The same with the race detector, in the tests and in the server
	@go list -C e2e -race -export -test -deps ./... >/dev/null
	@go list -race -export -deps ./cmd/fingerpost >/dev/null
	go test -C e2e -race -p 1 -count 1 -timeout 60m ./...

e2e-tools: control-planes
	@go list -C e2e -export -test -deps ./... >/dev/null
	@for tool in helm chart; do go tool -C tools/chart -n $$tool >/dev/null; done

.PHONY: k3d
k3d: ## Play the scenarios of e2e/k3d on three clusters in Docker; CI does not
	e2e/k3d/run.sh

# Of the minors that the charts admit, the oldest and the newest one. Building each takes minutes, once.
.PHONY: versions
versions: build ## Run the tests of e2e/live on the oldest and the newest Kubernetes that is supported (KUBERNETES=1.33: on one)
	@for v in $(or $(KUBERNETES),$(patsubst e2e/kube/kubernetes-%.mod,%,$(wildcard e2e/kube/kubernetes-*.mod))); do \
		echo "Kubernetes $$v"; \
		FINGERPOST_KUBERNETES=$$v FINGERPOST_BINARY=$(CURDIR)/bin/fingerpost go test -C e2e -count 1 -timeout 30m ./live; \
	done

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in what is linked into the binary; CI does so each week
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

# Two parts, each with a verdict of its own. The oracle knows every kind of object, the soak many clusters, proxies and faults.
.PHONY: soak
soak: ## Play random changes, faults and restarts for 10 minutes, and as long against the oracle (ARGS='-seed N -duration D')
	go run -C e2e ./soak $(ARGS)
	go test -C e2e -count 1 -timeout 24h -v ./oracle -duration 10m -seed 0 $(ARGS)

.PHONY: check
check: fmt lint words tidy generated shell ## Run everything that CI checks besides the tests

.PHONY: cases
cases: ## Run the contract cases and count them by section
	@go run -C tools/cases . $(CURDIR)

.PHONY: bench
bench: ## Run the benchmarks and measure the server end to end: a table, kept in docs/bench (ARGS='-only REGEXP': a part of it)
	go test -run '^$$' -bench . -benchmem $(PKGS)
	@go run -C e2e ./bench -out $(CURDIR)/docs/bench/results.md $(ARGS)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME
	@for found in $$(grep -ro --include='*_test.go' --exclude-dir=e2e --exclude-dir=tools 'func Fuzz[A-Za-z]*' . | sed 's/func //' | sort -u); do \
		package=$$(dirname $${found%:*}) target=$${found#*:}; \
		echo "fuzz: $$target in $$package"; \
		go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package; \
	done

##@ Develop

.PHONY: control-planes
control-planes: ## Build the binary of the real control planes and print where it is
	@go run -C e2e ./cmd/control-planes

.PHONY: generate
generate: ## Write what is generated: docs/flags.md, docs/problems.md, tables of pages, docs/dependencies.txt, renders of the charts and their tables of values
	go test ./internal/repo -run TestGenerated -update
	go test -C tools/chart . -update

.PHONY: format
format: $(TOOLS)/golangci-lint ## Format the sources
	@for m in $(MODULES); do (cd $$m && $(TOOLS)/golangci-lint fmt -c $(CURDIR)/.golangci.yml ./...); done

# The parts of check.

.PHONY: fmt lint words tidy generated shell
fmt: $(TOOLS)/golangci-lint
	@for m in $(MODULES); do (cd $$m && $(TOOLS)/golangci-lint fmt -c $(CURDIR)/.golangci.yml --diff ./...); done

lint: $(TOOLS)/golangci-lint
	@for m in $(MODULES); do (cd $$m && $(TOOLS)/golangci-lint run -c $(CURDIR)/.golangci.yml ./...); done
	@go run -C tools/lint ./paragraphs $(CURDIR)

words: $(TOOLS)/vale # of pages and Go comments; tools/lint/styles has the rule
	@git ls-files '*.md' '*.go' | xargs $(TOOLS)/vale --no-global --config tools/lint/vale.ini --output line

tidy:
	@for m in $(MODULES) tools/lint; do (cd $$m && go mod tidy -diff); done
	@cd e2e/kube && for m in kubernetes-*.mod; do go mod tidy -diff -modfile=$$m; done

generated:
	go test ./internal/repo -run TestGenerated

shell:
	@command -v shellcheck >/dev/null || { echo 'make check: shellcheck is not installed; on Debian: apt-get install shellcheck' >&2; exit 1; }
	@shellcheck -x -P SCRIPTDIR .ci/run e2e/k3d/run.sh e2e/k3d/scenarios.sh e2e/slices/testdata/kit.sh

$(TOOLS)/golangci-lint: # what it is made of is in the name
	@echo "Building golangci-lint, once; this takes some minutes." >&2
	@mkdir -p $(TOOLS)
	@go build -C tools/lint -o $(TOOLS)/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(TOOLS)/vale: # its C code has warnings
	@echo "Building Vale, once; this takes a minute or two." >&2
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=1 go build -C tools/lint -o $(TOOLS)/ github.com/vale-cli/vale/v3/cmd/vale 2>$(TOOLS)/vale.log || { cat $(TOOLS)/vale.log >&2; exit 1; }
