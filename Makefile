# SPDX-License-Identifier: Apache-2.0
#
# The habits of this repository. `make` alone lists them.

VERSION := $(shell packaging/version.sh)
LDFLAGS := -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s
ROUNDS ?= 200
# Layers of the tests to leave out, by name: make test SKIP="boxes machine"
SKIP ?=
# Tests to run and no others, by a regular expression: make test RUN=TestAFreshInstallation
RUN ?=

export GOFLAGS := -buildvcs=false

# Go, which is installed if there is none. It need not be in the PATH that sudo leaves. No shell stands
# between make and it, which would keep signals for itself.
GO := exec test/setup.sh go -- go

# What the boxes of the demo run.
DEMO := /usr/bin/python3:python3 /usr/bin/gcc:gcc+libc6-dev /usr/bin/git:git

.PHONY: help build test test-quick test-all soak lint fmt fuzz bench demo package release check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the programs, static, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

# What tests need, in the PATH or, in boxes, below /usr, and the packages of Debian that have it.
PURE := gcc:gcc+libc6-dev man:man-db groff:groff-base mandoc:mandoc zsh:zsh fish:fish
PACKAGES := lintian:lintian rpm:rpm rpmlint:rpmlint checkmodule:checkpolicy semodule_package:semodule-utils apparmor_parser:apparmor
BOXES := /usr/bin/python3:python3 /usr/bin/gcc:gcc+libc6-dev /usr/bin/git:git /usr/bin/curl:curl npm:npm pip3:python3-pip mmdebstrap:mmdebstrap
MACHINE := mke2fs:e2fsprogs bc:bc bison:bison flex:flex xz:xz-utils mmdebstrap:mmdebstrap $(if $(wildcard /dev/kvm),qemu-system-x86_64:qemu-system-x86)
EMULATION := qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm

# What the layers that are not left out need. Only pure tests can do without root, and then leave out some.
unless = $(if $(filter $(1),$(SKIP)),,$(2))
LAYERS = $(call unless,pure,$(PURE)) $(call unless,packages,$(PACKAGES)) $(call unless,boxes,$(BOXES)) $(call unless,machine,$(MACHINE)) \
	$(if $(filter-out $(SKIP),packages boxes machine demo),root usr:1500) $(call unless,demo,$(DEMO))

test: ## all tests, each on a ground that has what it needs; needs root. RUN=Test...: what is called that
	@exec test/setup.sh disk:8000 tmp:6000 go $(LAYERS) -- go run ./test/run -skip '$(SKIP)' -run '$(RUN)'

test-quick: ## what tells most in a minute, while one works; needs root
	@exec test/setup.sh root disk:3000 tmp:2000 usr:800 go $(PURE) $(BOXES) -- go run ./test/run -quick

test-all: ## all tests on every ground, for a release; takes hours and needs root
	@exec test/setup.sh root disk:12000 tmp:12000 usr:2500 go $(LAYERS) $(EMULATION) -- test/all.sh

lint: ## golangci-lint with the reasons of .golangci.yml, and go vet for the other architecture
	go tool -modfile=packaging/tools/lint.mod golangci-lint run ./...
	GOARCH=arm64 CGO_ENABLED=0 go vet ./...
	go mod tidy -diff
	go mod verify

fmt: ## format the code and tidy the modules
	go tool -modfile=packaging/tools/lint.mod golangci-lint fmt ./...
	go mod tidy

fuzz: ## every fuzz target for FUZZTIME (30s)
	@test/fuzz.sh $(FUZZTIME)

soak: ## test/soak for 240 rounds, and the machine's tests with a thousand rounds instead of two hundred
	@exec test/setup.sh root disk:8000 tmp:6000 usr:1500 go $(BOXES) $(MACHINE) -- go run ./test/run -soak

bench: build ## boxd against its peers and the bare kernel, in one run; ratios count (ROUNDS=200)
	go run ./test/bench -bin bin -rounds $(ROUNDS)

demo: ## a private boxd, real programs in real boxes, nothing left behind; needs root
	@test/setup.sh root disk:1500 tmp:500 usr:600 go $(DEMO) -- $(MAKE) --no-print-directory build
	@test/demo/demo.sh bin

package: ## .deb and .rpm for the architecture of this host, into dist/
	packaging/build.sh deb $$(go env GOARCH) dist
	packaging/build.sh rpm $$(go env GOARCH) dist

release: ## packages for amd64 and arm64 with SBOM, changes and checksums, into dist/
	packaging/release.sh dist

check: lint test ## what has to pass before a change lands

clean: ## remove what was built
	rm -rf bin dist
