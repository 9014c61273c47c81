# Targets: `make demo` shows Varve at work, `make test` runs all tests, `make check` checks style, lints and licences.
# They need Debian 12 with Rust and Python. `make setup` installs the rest; packages need root or sudo.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Each recipe runs as one script.
.ONESHELL:

CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
TOOLS := $(TARGET)/tools
PJDFSTEST_VERSION := 0.2.2
FSX_VERSION := 0.3.2
CARGO_DENY_VERSION := 0.20.2
MDBOOK_VERSION := 0.5.4
H5PY_VERSION := 3.16.0
HDF5PLUGIN_VERSION := 7.1.0
PYZMQ_VERSION := 27.3.0
CBOR2_VERSION := 6.2.1
OPHYD_ASYNC_VERSION := 0.21.3
BLUESKY_VERSION := 1.15.1
P4P_VERSION := 4.3.0
PYTHON_LZ4_VERSION := 4.4.5
SETUPTOOLS_VERSION := 84.2.1
NXMX_VERSION := 0.0.8
NXVALIDATE_VERSION := 0.3.5b3

# Debian packages, each after a command or file that shows that it is installed. Builds and the demo need only the first list.
# The second list is for tests: HDF5 tools and its C library, parallel HDF5, a browser for reports, etcd, and the detector clients on Windows, built and run.
BUILD_PACKAGES := cc:build-essential fusermount3:fuse3 mkfs.ext4:e2fsprogs
TEST_PACKAGES := h5dump:hdf5-tools chromium:chromium setfattr:attr setfacl:acl /usr/include/sys/acl.h:libacl1-dev rsync:rsync git:git \
  bindfs:bindfs ip:iproute2 etcd:etcd-server etcdctl:etcd-client openssl:openssl pkg-config:pkg-config mpirun:openmpi-bin strace:strace fio:fio \
  /usr/include/hdf5/serial/hdf5.h:libhdf5-dev \
  /usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi:python3-h5py-mpi \
  /usr/lib/python3/dist-packages/mpi4py:python3-mpi4py x86_64-w64-mingw32-gcc:gcc-mingw-w64-x86-64 wine:wine wine:wine64 \
  promtool:prometheus man:man-db systemd-analyze:systemd

# `make fuzz` compiles all crates with libFuzzer's instrumentation, which stable Rust has. --target keeps the
# instrumentation out of build scripts and procedural macros.
FUZZ_TARGETS ?= rows log wire rpc peer handshake record config volume names journal stream2 pva layout detector_stream
FUZZ_SECONDS ?= 300
FUZZ_FLAGS := --cfg fuzzing -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1 -Cpasses=sancov-module \
  -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

# The directory that `make demo` works in.
DEMO_DIR ?= $(or $(TMPDIR),/tmp)

# Time limits for timeout(1). Each end-to-end suite has its own, so that the output names a suite that hangs. A virtual
# machine on a busy host takes six times as long for the same work.
UNIT_LIMIT ?= 45m
SUITE_LIMIT ?= 25m
SOAK_LIMIT ?= 4h
SUITES := cli operate servers hosts profile report readme conformance realwork crash trouble million
# The suites that run longer with VARVE_SOAK=1.
SOAK_SUITES := cli membership volume power writer readers kill detector_service detector_long decoders conformance realwork hosts crash trouble repair dump million
# The integration tests of the other crates. Every build below selects the whole workspace, so that cargo builds each
# crate once with one set of features, and then runs the named tests.
OTHER_TESTS := $(filter-out $(SUITES),$(sort $(basename $(notdir $(wildcard crates/*/tests/*.rs fuzz/tests/*.rs xtask/tests/*.rs))) \
  $(notdir $(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs)))))

.PHONY: help setup build-packages packages tools venv wheel demo test check tidy docs release install dist bench soak fuzz

help:
	@echo "make setup   install the packages and tools for builds and tests"
	@echo "make demo    format, mount and measure a volume, and kill one of its servers (DEMO_DIR=$(DEMO_DIR)); VERBOSE=1 prints every figure"
	@echo "make test    all tests, end to end too"
	@echo "make check   format, lints, style rules, licences, advisories"
	@echo "make release the program to install, with profile-guided optimisation: $(TARGET)/varve"
	@echo "make install  PROGRAM with man pages, units and helper below PREFIX=$(PREFIX); DESTDIR is the root of a package"
	@echo "make dist    a .deb, a tarball and a Containerfile of PROGRAM: $(TARGET)/dist"
	@echo "make wheel   the Python client of the detector service as a package, in $(TARGET)/wheel"
	@echo "make bench   make release, then measure everything in ten minutes; the page is $(TARGET)/bench/page.html"
	@echo "make soak    the suites with their long counts"
	@echo "make fuzz    every decoder under libFuzzer, FUZZ_SECONDS=$(FUZZ_SECONDS) each; FUZZ_TARGETS chooses"
	@echo "make docs    the documents as a site: $(TARGET)/book/site/index.html"

setup: packages tools venv

build-packages:
	@bash scripts/packages.sh $(BUILD_PACKAGES)

packages:
	@bash scripts/packages.sh $(BUILD_PACKAGES) $(TEST_PACKAGES)

# Test suites of other projects that run on the mount. They are built once into target/tools.
tools: $(TOOLS)/bin/pjdfstest-$(PJDFSTEST_VERSION) $(TOOLS)/bin/fsx-$(FSX_VERSION)

$(TOOLS)/bin/pjdfstest-$(PJDFSTEST_VERSION): | packages
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build --version =$(PJDFSTEST_VERSION) pjdfstest
	touch $@

$(TOOLS)/bin/fsx-$(FSX_VERSION): | packages
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build --version =$(FSX_VERSION) fsx
	touch $@

# Python packages that read and validate the detector service's files, send stream2 and EPICS arrays, and run the client in
# Bluesky.
PYTHON_READY := venv/.h5py-$(H5PY_VERSION)-pyzmq-$(PYZMQ_VERSION)-ophyd-async-$(OPHYD_ASYNC_VERSION)-p4p-$(P4P_VERSION)-nxmx-$(NXMX_VERSION)-$(NXVALIDATE_VERSION)
venv: $(PYTHON_READY)

$(PYTHON_READY): | packages
	python3 -m venv venv
	venv/bin/pip install --quiet --disable-pip-version-check h5py==$(H5PY_VERSION) hdf5plugin==$(HDF5PLUGIN_VERSION) \
	  pyzmq==$(PYZMQ_VERSION) cbor2==$(CBOR2_VERSION) ophyd-async==$(OPHYD_ASYNC_VERSION) bluesky==$(BLUESKY_VERSION) \
	  p4p==$(P4P_VERSION) lz4==$(PYTHON_LZ4_VERSION) setuptools==$(SETUPTOOLS_VERSION) \
	  nxmx==$(NXMX_VERSION) nxvalidate==$(NXVALIDATE_VERSION)
	touch $@

# The Python client as a package: target/wheel/varve_detector-VERSION-py3-none-any.whl. It is built from a copy, because the
# build leaves files beside its sources.
wheel: venv
	rm -rf $(TARGET)/wheel
	mkdir -p $(TARGET)/wheel
	cp -r clients/python $(TARGET)/wheel/source
	venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(TARGET)/wheel \
	  $(TARGET)/wheel/source
	rm -r $(TARGET)/wheel/source
	ls $(TARGET)/wheel/*.whl

demo:
	@echo "make demo: compiles the program (five to seven minutes on two cores, the first time only), then runs it for about a"
	echo "minute. It installs the Debian packages $(foreach each,$(BUILD_PACKAGES),$(lastword $(subst :, ,$(each)))) if they are missing."
	echo "It uses at most 3 GiB in $(DEMO_DIR) and removes everything at the end, but for the program and the page."
	bash scripts/packages.sh $(BUILD_PACKAGES)
	$(CARGO) build --profile demo --locked --package varve-cli
	bash scripts/demo.sh $(if $(VERBOSE),--verbose) $(TARGET)/demo/varve $(TARGET)/demo.html "$(DEMO_DIR)"

# A failed suite does not keep the others from running, so one run shows every failure.
test: setup
	$(CARGO) fetch --locked
	$(CARGO) test --workspace --locked --no-run
	failed=
	timeout --kill-after=30s $(UNIT_LIMIT) $(CARGO) test --workspace --lib --bins $(OTHER_TESTS:%=--test %) --locked \
	  --no-fail-fast || failed=" units"
	for suite in $(SUITES); do
	  timeout --kill-after=30s $(SUITE_LIMIT) $(CARGO) test --workspace --test $$suite --locked -- --nocapture || failed+=" $$suite"
	done
	if [ -n "$$failed" ]; then echo "make test: failed:$$failed; each failure stands above" >&2; exit 1; fi

soak: setup
	$(CARGO) test --workspace --locked --no-run
	VARVE_SOAK=1 timeout --kill-after=30s $(SOAK_LIMIT) $(CARGO) test --workspace --lib --locked -- --nocapture
	for suite in $(SOAK_SUITES); do
	  VARVE_SOAK=1 timeout --kill-after=30s $(SOAK_LIMIT) \
	    $(CARGO) test --workspace --test $$suite --locked -- --nocapture
	done

# The fuzzer writes its findings to target/fuzz/TARGET/. Copy them to fuzz/corpus/TARGET/, and `make test` runs them.
fuzz: packages
	RUSTFLAGS="$(FUZZ_FLAGS)" $(CARGO) build --locked --profile fuzz --package varve-fuzz --features libfuzzer \
	  --target $(HOST) --target-dir $(TARGET)/fuzz/build
	for target in $(FUZZ_TARGETS); do
	  mkdir -p $(TARGET)/fuzz/$$target/corpus
	  VARVE_FUZZ_TARGET=$$target $(TARGET)/fuzz/build/$(HOST)/fuzz/varve-fuzz $(TARGET)/fuzz/$$target/corpus \
	    fuzz/corpus/$$target -artifact_prefix=$(TARGET)/fuzz/$$target/ -max_total_time=$(FUZZ_SECONDS) \
	    -max_len=4096 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
	done

# clippy runs twice: tests may use clocks, threads and sockets directly, and other code may not (clippy.toml).
check: packages tidy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --locked -- -D warnings
	$(CARGO) clippy --workspace --locked --all-targets -- \
	  -D warnings -A clippy::disallowed_methods -A clippy::disallowed_types
	command -v cargo-deny >/dev/null || [ -x $(TOOLS)/bin/cargo-deny ] || \
	  $(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build --version =$(CARGO_DENY_VERSION) cargo-deny
	PATH="$(TOOLS)/bin:$$PATH" $(CARGO) deny --log-level error check licenses bans sources
	PATH="$(TOOLS)/bin:$$PATH" bash scripts/advisories.sh $(CARGO)

tidy:
	$(CARGO) xtask tidy

docs: $(TOOLS)/bin/mdbook-$(MDBOOK_VERSION)
	@bash scripts/docs.sh $(TOOLS)/bin/mdbook $(TARGET)/book

$(TOOLS)/bin/mdbook-$(MDBOOK_VERSION):
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build --version =$(MDBOOK_VERSION) \
	  --no-default-features --features search mdbook
	touch $@

release: build-packages
	@CARGO="$(CARGO)" bash scripts/release.sh $(TARGET) $(TARGET)/varve

# The program to install and to package. `make release` builds the default; it is not built again.
PROGRAM ?= $(TARGET)/varve
PREFIX ?= /usr/local
DESTDIR ?=

$(TARGET)/varve:
	@$(MAKE) release

install: $(PROGRAM)
	@bash scripts/install.sh $(PROGRAM) "$(PREFIX)" "$(DESTDIR)"

dist: $(PROGRAM)
	@bash scripts/dist.sh $(PROGRAM) $(TARGET)/dist

bench: release
	@bash scripts/bench.sh $(TARGET)/varve $(TARGET)/bench docs/measurements/ratios.json
