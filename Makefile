# SPDX-FileCopyrightText: The kubediag Authors
# SPDX-License-Identifier: Apache-2.0

# Two commands are enough to know the project: make demo, make test. They install what they need, as root, on a Debian
# machine that has Go, and need no container engine, no cluster and no registry of images.

# VERSION is what the programs say of themselves and the tag of the images; config/ names the images by it.
VERSION ?= v0.1.0
# KUBELET is the version of the kubelet of make cluster-up: 1.18.19, which has kubernetes#68211, 1.36.3 or 1.37.2.
KUBELET ?= 1.18.19
# FUSE=1 gives the cluster of make cluster-up a CSI driver on FUSE.
FUSE ?=
# CLUSTER_NAME is the name of the cluster of make cluster-up: clusters with other names can run beside it.
CLUSTER_NAME ?= default
FUZZTIME ?= 3s
# REGISTRY, with the path in it, has the images of a release, and REPO_URL is its page. Without them the release has no such names.
REGISTRY ?=
REPO_URL ?=

ARCHES   := amd64 arm64
# The plugin runs on a person's own machine; everything else runs on nodes.
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
PROGRAMS := manager agent kubediag kubectl-kubediag
# The race detector needs a C compiler; without one the unit tier runs without it.
RACE     := $(if $(shell command -v gcc),-race)
TAGS     := api,kernel,ceph,cluster,vm,release

# What is compiled does not hold where it lies, so that another checkout need not compile it again.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

# They are static: their images hold nothing else. So they are not position-independent, as Go's linker gives such programs an
# interpreter, on amd64 and arm64, and without one (-ldflags=-d) they crash at their start.
ABOUT   := kubediag.org/kubediag/internal/version
BUILD   := CGO_ENABLED=0 go build -ldflags '-s -w -X $(ABOUT).version=$(VERSION) $(if $(REGISTRY),-X $(ABOUT).registry=$(REGISTRY))'
CLUSTER := go run ./test/cluster/cmd/cluster
TIER    := go run ./hack/tier -fuzztime $(FUZZTIME) $(RACE)
LINT    := go tool -modfile=tools/lint/go.mod golangci-lint
GEN     := go tool -modfile=tools/go.mod controller-gen
# The Helm chart has a copy of these files of config/, as a chart cannot read what lies outside of it.
CHART   := crd/*.yaml rbac/*/*.yaml agent/*.yaml manager/*.yaml components/*/*.yaml policy/*.yaml alerts/podmonitor.yaml \
           alerts/prometheusrule.yaml dashboards/*.json

.DEFAULT_GOAL := help

##@ See it

.PHONY: demo
demo: bin/kubediag ## Break two real mounts in a namespace of its own, find out why, heal them, prove it
	bin/kubediag demo

.PHONY: cluster-up
cluster-up: ## Start a real cluster with KUBELET=1.18.19 or 1.37.2 and print its KUBECONFIG
	@$(CLUSTER) up --name $(CLUSTER_NAME) --kubelet $(KUBELET) $(if $(FUSE),--fuse)

.PHONY: cluster-down
cluster-down: ## Stop what cluster-up started
	@$(CLUSTER) down --name $(CLUSTER_NAME)

##@ Build

.PHONY: build
build: $(PROGRAMS:%=bin/%) ## Build the static programs into bin/

# Go knows best what is out of date.
.PHONY: $(PROGRAMS:%=bin/%)
$(PROGRAMS:%=bin/%): bin/%:
	$(BUILD) -o $@ ./cmd/$*

.PHONY: image
image: ## Pack manager, agent and command as images into dist/, for amd64 and arm64
	set -e; for arch in $(ARCHES); do for name in $(PROGRAMS); do \
	  GOARCH=$$arch $(BUILD) -o bin/linux_$$arch/$$name ./cmd/$$name; done; done
	go run ./hack/release images -version $(VERSION) -arch "$$(echo $(ARCHES) | tr ' ' ,)"

.PHONY: release
release: ## Make all files of a release in dist/VERSION: VERSION=v0.2.0 REGISTRY=registry.example.org/kubediag REPO_URL=...
	set -e; for arch in $(ARCHES); do for name in manager agent kubediag; do \
	  GOOS=linux GOARCH=$$arch $(BUILD) -o bin/linux_$$arch/$$name ./cmd/$$name; done; done; \
	for platform in $(PLATFORMS); do system=$${platform%/*} arch=$${platform#*/} end=; [ $$system != windows ] || end=.exe; \
	  GOOS=$$system GOARCH=$$arch $(BUILD) -o bin/$${system}_$$arch/kubectl-kubediag$$end ./cmd/kubectl-kubediag; done
	go run ./hack/release pack -version $(VERSION) -registry "$(REGISTRY)" -repo-url "$(REPO_URL)" -commit "$$(git rev-parse HEAD)" \
	  -date "$$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)"

.PHONY: push
push: ## Push the images and the chart of make release to REGISTRY, with the credentials of docker login
	go run ./hack/release push -version $(VERSION) -registry "$(REGISTRY)"

.PHONY: clean
clean: ## Remove what make has built
	rm -rf bin dist

##@ Test

# Tiers run side by side in two lines, as most of them wait more than they work. The cluster tier and the kernel tier are in one line,
# since the latter floods the machine with mounts: scans of the nodes would say, and rightly, that not everything was looked at. The
# target test runs the tests that docs/support.md rests on, on the oldest kernel and on one in the middle; test-kernels runs all tests
# on all kernels.
.PHONY: test
test: ## Run every tier and count it: cluster, kernel, and beside them api, ceph, unit, kernels
	@status=0; mkdir -p bin; $(CLUSTER) build || status=1; \
	(s=0; for tier in cluster kernel; do $(TIER) $$tier || s=1; done; exit $$s) >bin/beside.log 2>&1 & beside=$$!; \
	for tier in api ceph unit "-kernels 5.10,6.1 -table kernels"; do $(TIER) $$tier || status=1; done; \
	wait $$beside || status=1; cat bin/beside.log; \
	exit $$status

.PHONY: kubernetes
kubernetes: ## Build and install what a cluster is made of, once; tests do it by themselves
	@$(CLUSTER) build

.PHONY: test-unit test-api test-kernel test-kernels test-ceph test-cluster test-release fuzz
test-unit: ## Run the tests that need nothing
test-api: ## Run the tests that need an API server, and start one
test-kernel: ## Run the tests that need root, on real mounts
test-kernels: ## Run the kernel tier, and what only a virtual machine can show, on Linux 5.10, 6.1, 6.12 and this machine's
test-ceph: ## Run the tests that need a Ceph file system, and start one
test-cluster: ## Run the tests that need a cluster, and start one
test-release: ## Make a release twice, compare all files, run its programs for arm64, heal a pod with its files alone, and try real FUSE clients, another kubelet and container runtime, and older API servers; no part of make test
fuzz: ## Look for new inputs with every fuzz test, for FUZZTIME each
test-api test-cluster: kubernetes
test-unit test-api test-kernel test-kernels test-ceph test-cluster fuzz:
	@$(TIER) $(@:test-%=%)
test-release:
	@status=0; $(TIER) release || status=1; \
	for version in 1.36.3 1.24.17; do echo "=== API server $$version"; KUBEDIAG_API_SERVER=$$version $(TIER) api || status=1; done; \
	exit $$status

.PHONY: test-ui
test-ui: ## Look at the pages with Debian's chromium and axe-core, with pictures in bin/ui; no part of make test
	@command -v chromium >/dev/null && command -v npm >/dev/null || apt-get install -y --no-install-recommends chromium npm fonts-dejavu-core fonts-wqy-microhei
	@mkdir -p bin/ui
	@test -e bin/ui/node_modules/axe-core/axe.min.js || npm install --prefix bin/ui --no-save --no-audit --no-fund axe-core@4.11.0
	cd test/ui && go test -count=1 ./...
	go test -count=1 -tags cluster,ui -run TestHealsWithTheMouse ./test/e2e

.PHONY: test-ui-speed
test-ui-speed: ## Measure the pages with 5,000 faults, after make test-ui: first paint, computing, size, memory
	cd test/ui && go test -count=1 -v -run 'TestSpeed$$|TestANewFault' .

.PHONY: test-headlamp
test-headlamp: ## Build the plugin for Headlamp into bin/headlamp with its npm kit, and check its types; no part of make test
	@command -v npm >/dev/null || apt-get install -y --no-install-recommends npm
	@mkdir -p bin/headlamp && cp -R config/integrations/headlamp/. bin/headlamp/
	@test -d bin/headlamp/node_modules || npm install --prefix bin/headlamp --ignore-scripts --no-audit --no-fund
	cd bin/headlamp && npm run build && npm run tsc

.PHONY: bench
bench: ## Measure what has a bound, as ratios within one run
	@go run ./hack/tier bench

##@ Keep in order

.PHONY: generate
generate: ## Write deep copies, CRDs, roles, lists of faults, the page of metrics, alerts, schemas, the chart's copy of config/ and its README
	$(GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...
	$(GEN) crd:deprecatedV1beta1CompatibilityPreserveUnknownFields=false paths=./api/... output:crd:dir=config/crd
	$(GEN) rbac:roleName=kubediag-manager paths=./internal/manager/... paths=./internal/controller/... output:rbac:dir=config/rbac/manager
	$(GEN) rbac:roleName=kubediag-agent paths=./internal/agent/... output:rbac:dir=config/rbac/agent
	go run ./hack/metrics
	KUBEDIAG_GOLDEN=1 go test -run Schema ./internal/cli/node
	rm -rf charts/kubediag/config
	cp --parents $(addprefix config/,$(CHART)) charts/kubediag
	find charts/kubediag/config -name kustomization.yaml -delete
	KUBEDIAG_GOLDEN=1 go test -count=1 -run TestReadmeNamesTheValues ./test/chart
	KUBEDIAG_GOLDEN=1 go test -count=1 -run TestMapIsCurrent .

.PHONY: support
support: ## Write into docs/support.md what works on which kernel, by the tests that show it
	@$(TIER) -table -write kernels

.PHONY: fmt
fmt: ## Format the code
	gofmt -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: vet
vet: ## Run go vet on every tier, and compile the plugin for the systems that people work on
	go vet -tags $(TAGS) ./...
	set -e; for system in darwin/arm64 windows/amd64; do GOOS=$${system%/*} GOARCH=$${system#*/} CGO_ENABLED=0 go build -o /dev/null ./cmd/kubectl-kubediag; done

.PHONY: lint
lint: ## Run golangci-lint on every tier
	$(LINT) run --allow-parallel-runners ./...

.PHONY: size
size: ## Print the figures of the code beside the bounds that are wanted; DIR=... measures other trees
	@go run ./hack/size $(DIR)

# It asks for one module first: the database may be out of reach, and it has no time limit of its own.
.PHONY: vuln
vuln: ## Look up known vulnerabilities in what the programs call, if the database can be reached
	@go build -modfile=tools/vuln/go.mod -o bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	@if timeout 10 bin/govulncheck -mode=query -format=json stdlib@v1.26.0 >/dev/null 2>&1; then bin/govulncheck ./cmd/...; \
	  else echo "vuln: the vulnerability database did not answer within 10 s: nothing was looked up in it"; fi

.PHONY: check
check: generate fmt vet lint ## Do all of the above; fail where that leaves the tree dirty
	@dirty=$$(git status --porcelain); test -z "$$dirty" || { echo "not committed:"; echo "$$dirty"; git diff; exit 1; }

.PHONY: verify
verify: check vuln test ## Do what CI does

.PHONY: help
help: ## Print this
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
