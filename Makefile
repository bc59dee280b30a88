# SPDX-License-Identifier: Apache-2.0
#
# The habits of this repository. `make` alone lists them.

VERSION := $(shell packaging/version.sh)
LDFLAGS := -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s
ROUNDS ?= 200
# What make bench writes, and the commit whose boxd it measures too
PAGE ?= docs/benchmark.md
AGAINST ?=
# Layers of the tests to leave out, by name: make test SKIP="boxes machine"
SKIP ?=
# Tests to run and no others, by a regular expression: make test RUN=TestAFreshInstallation
RUN ?=

export GOFLAGS := -buildvcs=false

# Go, which is installed if there is none. It need not be in the PATH that sudo leaves. No shell stands
# between make and it, which would keep signals for itself.
GO := exec test/setup.sh go -- go

# Sandboxes that boxd is measured with, in Debian.
PEERS := cc:gcc+libc6-dev bwrap:bubblewrap crun:crun runc:runc firejail:firejail podman:podman systemd-nspawn:systemd-container

# What the boxes of the demo run.
DEMO := /usr/bin/python3:python3 /usr/bin/gcc:gcc+libc6-dev /usr/bin/git:git

.PHONY: help build test test-quick test-all abuse soak lint fmt fuzz bench bench-machine bench-counts demo package console screenshots release check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the programs, static, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

# What tests need, in the PATH or, in boxes, below /usr, and the packages of Debian that have it.
PURE := gcc:gcc+libc6-dev rpm:rpm man:man-db groff:groff-base mandoc:mandoc zsh:zsh fish:fish mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs
PACKAGES := npm:npm appstreamcli:appstream cpio:cpio lintian:lintian rpm:rpm rpmlint:rpmlint checkmodule:checkpolicy semodule_package:semodule-utils apparmor_parser:apparmor node:nodejs python3:python3
NOTEBOOK := /usr/lib/python3/dist-packages/ipykernel:python3-ipykernel /usr/lib/python3/dist-packages/matplotlib:python3-matplotlib
BOXES := /usr/bin/python3:python3 /usr/bin/gcc:gcc+libc6-dev /usr/bin/git:git /usr/bin/curl:curl npm:npm node:nodejs pip3:python3-pip mypy:mypy mmdebstrap:mmdebstrap mke2fs:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs $(NOTEBOOK)
# Of them, what the console is looked at with.
CONSOLE := npm:npm /usr/bin/chromium:chromium /usr/lib/cockpit/cockpit-ws:cockpit-ws /usr/bin/cockpit-bridge:cockpit-bridge dbus-run-session:dbus-daemon
MACHINE := mke2fs:e2fsprogs bc:bc bison:bison flex:flex xz:xz-utils mmdebstrap:mmdebstrap $(if $(wildcard /dev/kvm),qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils)
EMULATION := qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm qemu-img:qemu-utils cpio:cpio

# What the layers that are not left out need. Only pure tests can do without root, and then leave out some.
unless = $(if $(filter $(1),$(SKIP)),,$(2))
LAYERS = $(call unless,pure,$(PURE)) $(call unless,packages,$(PACKAGES)) $(call unless,boxes,$(BOXES) $(CONSOLE)) $(call unless,machine,$(MACHINE)) \
	$(if $(filter-out $(SKIP),packages boxes machine demo),root usr:2500) $(call unless,demo,$(DEMO))

test: ## all tests, each on a ground that has what it needs; needs root. RUN=Test...: what is called that
	@exec test/setup.sh disk:8000 tmp:6000 go $(LAYERS) -- go run ./test/run -skip '$(SKIP)' -run '$(RUN)'

test-quick: ## what tells most in a minute, while one works; needs root
	@exec test/setup.sh root disk:3000 tmp:2000 usr:1100 go $(PURE) $(BOXES) -- go run ./test/run -quick

test-all: ## all tests on every ground, for a release; takes hours and needs root
	@exec test/setup.sh root disk:12000 tmp:12000 usr:2800 go $(LAYERS) $(EMULATION) -- test/all.sh

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

abuse: ## every case of test/abuse/cases.md, each on a ground that has what it needs; writes docs/abuse-report.md; needs root
	 test/setup.sh root disk:8000 tmp:6000 usr:1800 go $(PURE) $(BOXES) $(MACHINE) -- go run ./test/run -abuse -skip '$(SKIP)'

soak: ## hours: test/soak with 240 rounds and an hour of load, 200 kills of everything and 1,000 rounds in the machine; writes docs/soak-report.md
	@exec test/setup.sh root disk:8000 tmp:6000 usr:1800 go $(BOXES) $(MACHINE) -- go run ./test/run -soak

bench: build ## boxd, its peers and the bare kernel in one run, into PAGE (docs/benchmark.md); AGAINST=rev: and the boxd of a commit
	@exec test/setup.sh root disk:3000 tmp:3000 usr:800 go $(PEERS) -- \
		go run ./test/bench -bin bin -rounds $(ROUNDS) -page '$(PAGE)' -against '$(AGAINST)'

bench-machine: ## an execution and a session where cgroups and quotas limit them, in the machine, into docs/benchmark-machine.md
	@exec test/setup.sh root disk:8000 tmp:6000 usr:1800 go $(MACHINE) -- go run ./test/run -bench docs/benchmark-machine.md

bench-counts: ## allocations, system calls and processor time of an execution and a create, beside those of AGAINST; a busy host will do
	$(GO) run ./test/bench -counts 5 -against '$(AGAINST)'

demo: ## a private boxd, real programs in real boxes, nothing left behind; needs root
	@test/setup.sh root disk:1500 tmp:500 usr:600 go $(DEMO) -- $(MAKE) --no-print-directory build
	@test/demo/demo.sh bin

package: ## .deb and .rpm for the architecture of this host, of boxd and of boxd-fleet, wheel and npm package of the clients, into dist/
	packaging/build.sh deb $$(go env GOARCH) dist
	packaging/build.sh rpm $$(go env GOARCH) dist
	packaging/fleet.sh deb $$(go env GOARCH) dist
	packaging/fleet.sh rpm $$(go env GOARCH) dist
	@exec test/setup.sh python3:python3 -- packaging/clients.sh wheel dist
	@exec test/setup.sh node:nodejs npm:npm -- packaging/clients.sh npm dist

console: ## .deb and .rpm of the console, boxd-cockpit, into dist/; needs npm
	@exec test/setup.sh npm:npm go -- $(MAKE) --no-print-directory console-packages

.PHONY: console-packages
console-packages:
	packaging/build.sh deb all dist
	packaging/build.sh rpm all dist

screenshots: ## the pictures of docs/guide/console.md, with boxes of this host; needs root
	@BOXD_TEST_PICTURES=$(CURDIR)/docs/guide/console exec test/setup.sh root go $(CONSOLE) -- go test -count=1 -run TestPicturesOfTheGuide ./test/console

release: ## packages for amd64 and arm64 and of the clients, with SBOM, changes and checksums, into dist/
	packaging/release.sh dist

check: lint test ## what has to pass before a change lands

clean: ## remove what was built
	rm -rf bin dist
