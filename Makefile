# Chores. `make demo` shows Varve at work, `make test` proves it, `make check` keeps the house rules.
# A fresh Debian 12 with Rust and Python is enough: `make setup` brings the rest (packages need root or sudo).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# A recipe is one script.
.ONESHELL:

CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
TOOLS := $(TARGET)/tools
PJDFSTEST_VERSION := 0.2.2
FSX_VERSION := 0.3.2
CARGO_DENY_VERSION := 0.20.2

# Packages of Debian and what shows that each is there.
PACKAGES := fuse3 attr acl libacl1-dev rsync git pkg-config build-essential
PROOFS := fusermount3:fuse3 setfattr:attr setfacl:acl rsync:rsync git:git pkg-config:pkg-config cc:build-essential

# Time limits, in the form of timeout(1). The end-to-end suites get one each, so that one that hangs is named.
UNIT_LIMIT ?= 15m
SUITE_LIMIT ?= 10m
SOAK_LIMIT ?= 4h
SUITES := cli readme conformance realwork crash million

.PHONY: help setup packages tools demo test check tidy bench soak

help:
	@echo "make setup   install what building and testing need"
	@echo "make demo    format, mount and measure a volume in a local directory, in under two minutes after the build"
	@echo "make test    all tests, end to end too"
	@echo "make check   format, lints, house rules, licences"
	@echo "make bench   measure at length; the page goes to $(TARGET)/bench.html"
	@echo "make soak    the end-to-end suites with their long counts"

setup: packages tools

packages:
	@missing=""
	for proof in $(PROOFS); do command -v "$${proof%%:*}" >/dev/null || missing="$$missing $${proof#*:}"; done
	[ -e /usr/include/sys/acl.h ] || missing="$$missing libacl1-dev"
	if [ -z "$$missing" ]; then exit 0; fi
	if [ "$$(id -u)" = 0 ]; then as=""; elif command -v sudo >/dev/null; then as=sudo; else
	  echo "missing packages:$$missing; ask root to run: apt-get install $(PACKAGES)" >&2; exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	$$as apt-get update -qq
	$$as apt-get install -y -qq --no-install-recommends $$missing

# The suites of others that the mount is tested with: built once into target/tools.
tools: $(TOOLS)/bin/pjdfstest-$(PJDFSTEST_VERSION) $(TOOLS)/bin/fsx-$(FSX_VERSION)

$(TOOLS)/bin/pjdfstest-$(PJDFSTEST_VERSION): | packages
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build --version =$(PJDFSTEST_VERSION) pjdfstest
	touch $@

$(TOOLS)/bin/fsx-$(FSX_VERSION): | packages
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build --version =$(FSX_VERSION) fsx
	touch $@

demo: packages
	$(CARGO) build --release --package varve-cli
	@bash scripts/demo.sh $(TARGET)/release/varve $(TARGET)/demo.html

test: setup
	$(CARGO) fetch --locked
	$(CARGO) test --workspace --locked --no-run
	timeout --kill-after=30s $(UNIT_LIMIT) $(CARGO) test --workspace --exclude varve-cli --locked
	timeout --kill-after=30s $(UNIT_LIMIT) $(CARGO) test --package varve-cli --lib --bins --locked
	for suite in $(SUITES); do
	  timeout --kill-after=30s $(SUITE_LIMIT) $(CARGO) test --package varve-cli --test $$suite --locked -- --nocapture
	done

soak: setup
	$(CARGO) test --workspace --locked --no-run
	for suite in conformance realwork crash million; do
	  VARVE_SOAK=1 timeout --kill-after=30s $(SOAK_LIMIT) \
	    $(CARGO) test --package varve-cli --test $$suite --locked -- --nocapture
	done

# Tests are outside the `world` seam (clippy.toml), all else about them is linted.
check: packages tidy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --locked -- -D warnings
	$(CARGO) clippy --workspace --locked --all-targets -- \
	  -D warnings -A clippy::disallowed_methods -A clippy::disallowed_types
	command -v cargo-deny >/dev/null || [ -x $(TOOLS)/bin/cargo-deny ] || \
	  $(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build --version =$(CARGO_DENY_VERSION) cargo-deny
	PATH="$(TOOLS)/bin:$$PATH" $(CARGO) deny --log-level error check licenses bans sources

tidy:
	$(CARGO) xtask tidy

bench: packages
	$(CARGO) build --release --package varve-cli
	@bash scripts/bench.sh $(TARGET)/release/varve $(TARGET)/bench.html $(TARGET)/bench.json
