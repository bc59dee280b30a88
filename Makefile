# SPDX-License-Identifier: Apache-2.0
#
# The habits of this repository. `make` alone lists them.

VERSION := $(shell packaging/version.sh)
LDFLAGS := -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s
ROUNDS ?= 200
# Layers of the tests to leave out, by name: make test SKIP="boxes vm"
SKIP ?=
# System of the virtual machine: bookworm or trixie
export FLAVOUR ?= bookworm
# Anything: the virtual machine runs all tests of boxes again, and not only those of test/vm/everyday
export WHOLE ?=

export GOFLAGS := -buildvcs=false

.PHONY: help build test soak lint fmt fuzz bench demo package release check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the programs, static, into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

test: ## everything: pure tests, real boxes, the demo, a virtual machine; needs root
	@test/run.sh $(SKIP)

lint: ## golangci-lint with the reasons of .golangci.yml, and go vet for the other architecture
	go tool -modfile=lint.mod golangci-lint run ./...
	GOARCH=arm64 CGO_ENABLED=0 go vet ./...
	go mod tidy -diff
	go mod verify

fmt: ## format the code and tidy the modules
	go tool -modfile=lint.mod golangci-lint fmt ./...
	go mod tidy

fuzz: ## every fuzz target for FUZZTIME (30s)
	@test/fuzz.sh $(FUZZTIME)

soak: ## test/soak for 240 rounds, and the machine's tests with a thousand rounds instead of two hundred
	@SOAK=1 test/run.sh pure boxes demo $(SKIP)

bench: build ## boxd against its peers and the bare kernel, in one run; ratios count (ROUNDS=200)
	go run ./test/bench -bin bin -rounds $(ROUNDS)

demo: build ## a private boxd, real programs in real boxes, nothing left behind; needs root
	@test/demo/demo.sh bin

package: ## .deb and .rpm for the architecture of this host, into dist/
	packaging/build.sh deb $$(go env GOARCH) dist
	packaging/build.sh rpm $$(go env GOARCH) dist

release: ## packages for amd64 and arm64 with SBOM, changes and checksums, into dist/
	packaging/release.sh dist

check: lint test ## what has to pass before a change lands

clean: ## remove what was built
	rm -rf bin dist
