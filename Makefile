# `make demo` shows the main job; `make test` runs the tests, `make test-long` at full size. All install what they need when run as root.

SHELL := /bin/bash
CARGO ?= cargo
# Those in which one side reads or writes what the other side may change.
ADDRESS_TESTS := --lib --test it

# Programs without libraries run in any guest, and so are what the tests run on this host too: one release build does for all. All are named
# in one build, as what they depend on would be built again with other features.
TARGET := x86_64-unknown-linux-gnu
STATIC := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --target $(TARGET)
BUILT := $(or $(CARGO_TARGET_DIR),target)
PROGRAMS := $(BUILT)/$(TARGET)/release

# What packages ship.
DIST := $(BUILT)/$(TARGET)/dist/tombolo

# The library in C: it cannot be without the C library, so what is built for the static programs is of no use to it.
LIBRARY := $(BUILT)/release/libtombolo.so
TESTED_LIBRARIES := $(BUILT)/debug/deps/libtombolo.so $(BUILT)/planted/debug/deps/libtombolo.so

# Some tests of these open files by handle, act as several users, own devices or mount, which is root's alone.
ROOT_TESTS := tombolo-sys tombolo-host-links tombolo-front-fuse tombolo-layer-replies tombolo-back-local-dir libtombolo tombolo-c tombolo-cli \
	tombolo-conformance tombolo-crash-images tombolo-nfs-tests tombolo-nfs-client-tests tombolo-vrpc-tests
ifneq ($(shell id -u),0)
LEFT_OUT := $(ROOT_TESTS:%=--exclude %)
# The others leave out what takes root.
export TOMBOLO_ALLOW_SKIP ?= 1
endif

# These keep all processors busy, so each has the machine for itself.
SERIAL := programs test-planted
# These wait for about half of their time, so two run at a time (tests/timed), the longest first. The last uses what test-planted has built.
PARALLEL := test-guests test-mount test-posix test-typed test-postgres test-chaos test-crash test-disk test-package
# The benchmarks are tried if they or what they all measure have changed: on a branch since it left main, on main in the last 20 commits.
BENCH_CHANGED = $(shell git diff --quiet "$$(tests/base 20)" -- bench core mem || echo bench-quick)

.PHONY: help site test-typed packages peers build c-library static programs dist package demo gate test test-long test-rust test-changed test-planted test-fuzz test-address test-mount test-guests test-guests-all test-crash test-crash-all test-disk test-disk-all test-chaos test-chaos-all test-package test-posix test-postgres test-postgres-all test-write-back-all lint lint-text build-bench bench bench-quick clean as-root test-build

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

packages: ## Debian's packages that building and testing need: installs them as root, otherwise names them
	.ci/packages

peers: ## what the tests need of others: more packages, a guest's kernel, pjdfstest and fsx, QEMU 10's tools
	tests/peers

build: ## the binary, target/release/tombolo
	$(CARGO) build --release -p tombolo-cli

c-library: ## the library for programs in C, target/release/libtombolo.so; its header is client/c/include/tombolo.h
	$(CARGO) build --release -p tombolo-c

static: ## the binary without libraries, for guests: target/x86_64-unknown-linux-gnu/release/tombolo
	$(STATIC) --release -p tombolo-cli

programs: ## the same, and the programs that the tests run beside it
	$(STATIC) --release -p tombolo-cli -p tombolo-bench -p tombolo-conformance -p tombolo-strict -p tombolo-kill -p tombolo-power-loss -p tombolo-wan

dist: ## the program that packages ship, static and stripped: target/x86_64-unknown-linux-gnu/dist/tombolo
	$(STATIC) --profile dist -p tombolo-cli

package: dist c-library ## a Debian package of it: target/package/tombolo_VERSION_amd64.deb
	packaging/build $(DIST) $(LIBRARY)

site: ## the documentation as a web site: target/site
	docs/site $(BUILT)/site

demo: programs ## share a source tree with a real guest and build it there
	tests/guests/setup
	demo/run

as-root:
	@[ "$$(id -u)" = 0 ] || { echo "this needs root, for mounts and guests; make build, lint and test-rust do not" >&2; exit 1; }

test: as-root ## everything that has to pass
	tests/timed $(MAKE) packages peers $(SERIAL) --parallel 2 $(PARALLEL)

# Clippy lints what `make test-planted` builds.
gate: as-root ## lints, the same, and a quick pass of each benchmark if what they measure has changed
	tests/timed $(MAKE) packages peers lint-text $(SERIAL) --parallel 2 $(PARALLEL) $(BENCH_CHANGED)

test-long: export TOMBOLO_LONG = 1
test-long: as-root ## the same at full size: an hour of fuzzing, every case on both kinds of guests, a thousand kills
	tests/timed $(MAKE) packages peers lint programs test-rust test-planted test-address test-fuzz test-mount test-build test-posix test-postgres-all test-write-back-all test-guests-all test-typed test-crash-all test-disk-all test-chaos-all test-package site

# `make peers` has unpacked this: the tests then demand it.
RUST_TESTS := test-rust test-changed test-planted
$(RUST_TESTS): export TOMBOLO_QEMU_10 ?= $(wildcard $(CURDIR)/.cache/qemu-10/usr/bin)
# `make programs` has built this: the C library behaves differently in it.
$(RUST_TESTS): export TOMBOLO_STATIC ?= $(wildcard $(abspath $(PROGRAMS))/tombolo)
test-rust: ## unit, property, conformance and command-line tests; as another user than root those that can do without
	@if [ -n "$(LEFT_OUT)" ]; then echo "skipped, as they open files by handle, act as several users or mount, which takes root: $(ROOT_TESTS)"; fi
	tests/rust/run $(LEFT_OUT)

test-changed: ## those of the packages that differ from BASE, by default from main, and of those that depend on them
	tests/rust/run --changed $(BASE)

test-planted: as-root ## all of test-rust in a copy of the tree with bugs planted, which are all off, and each bug's test with it on
	env -u TOMBOLO_LONG tests/planted/run

test-fuzz: ## each fuzz target for five minutes, after all that it has met before
	fuzz/run all 300

test-address: ## rings, doorbells and regions under the address sanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/asan \
		ASAN_OPTIONS=handle_sigbus=0 $(CARGO) test --target x86_64-unknown-linux-gnu \
		-p tombolo-mem -p tombolo-shm $(ADDRESS_TESTS)

test-mount: as-root programs ## the conformance suite through FUSE mounts of this host, and what strict asks the server
	tests/mount/run
	tests/strict/run

test-build: as-root build dist ## mounts by the builds that other tests do not run: with libraries, and as packages ship it
	TOMBOLO=$(BUILT)/release/tombolo tests/mount/run dir
	TOMBOLO=$(DIST) tests/mount/run dir

test-posix: as-root programs ## pjdfstest and fsx through a FUSE mount
	tests/posix/on-mount

test-postgres: as-root programs ## a database on a mount, under load
	tests/postgres/run

test-postgres-all: as-root programs ## the same, and killed on mounts of each kind
	tests/postgres/run
	tests/postgres/run --all

test-write-back-all: as-root programs ## git and SQLite where changes are kept back, the proxy killed under them; losses of power
	tests/write-back/run
	tests/power-loss/run

test-guests: programs ## real guests: a job on each kind, and what only a guest's kernel sees
	tests/guests/setup
	tests/guests/cases --gate

test-typed: as-root programs ## the commands of README.md and the quickstart, as they stand
	tests/guests/setup
	tests/typed/run

test-guests-all: programs ## real guests: all cases in both
	tests/guests/setup
	tests/guests/cases

test-crash: programs ## the NFS server killed under load, and what it syncs before it says stable
	tests/kill/nfs

test-crash-all: programs
	tests/kill/nfs --all

test-disk: as-root programs ## a guest's file system on a disk whose host has lost its power
	tests/power-loss/disk raw ext4 back

test-disk-all: as-root programs
	tests/power-loss/disk

test-chaos: programs ## either side of a link killed, stopped and started under load
	tests/kill/links

test-chaos-all: programs
	tests/kill/links --all

test-package: programs ## the Debian package installed, used and removed; with the library in C that tests have built last
	@ls $(TESTED_LIBRARIES) >/dev/null 2>&1 || $(CARGO) build -p tombolo-c
	packaging/test $(PROGRAMS)/tombolo "$$(ls -t $(TESTED_LIBRARIES) 2>/dev/null | head -n 1)"

lint: lint-text ## formatter, clippy, shellcheck, whether the planted bugs' patches apply, whether the fuzz targets compile
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	# The fuzz targets are a workspace of their own; to check them takes no libFuzzer.
	CUSTOM_LIBFUZZER_PATH=/libfuzzer.a CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target} $(CARGO) check --quiet --manifest-path fuzz/Cargo.toml

lint-text: ## what takes no compiler of that
	$(CARGO) fmt --all --check
	if command -v shellcheck >/dev/null; then git ls-files -z | xargs -0 grep -lZE '^#!/(usr/)?bin/(env )?(ba)?sh' | xargs -0 -n 4 -P 2 shellcheck -x; fi
	tests/planted/run --check

build-bench: build
	$(CARGO) build --release -p tombolo-bench

bench-quick: programs ## one quick pass of each benchmark, to see that it runs
	$(PROGRAMS)/tombolo-bench all --quick

bench: build-bench ## every table of docs/benchmarks.md that this machine can run
	target/release/tombolo-bench all --out target/bench-reports

clean: ## build output and caches
	$(CARGO) clean
	rm -rf .cache
