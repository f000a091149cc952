# `make demo` shows the main job; `make test` runs the tests, `make test-long` at full size. All install what they need when run as root.

SHELL := /bin/bash
CARGO ?= cargo
# Those in which one side reads or writes what the other side may change.
ADDRESS_TESTS := --lib --test it --test stranger

# What packages ship, and how large it may be.
DIST = $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/dist/tombolo
DIST_BYTES_MAX := 12000000

# One guest of each kind of share; QEMU emulates, which takes its time.
QEMU_JOBS := 10-job 40-guest-killed 80-nfs-job 92-shm-memory 95-shm-job

.PHONY: help packages build static dist demo test test-long test-rust test-planted test-fuzz test-address test-mount test-guests test-guests-all test-crash test-crash-all test-chaos test-chaos-all test-posix test-postgres test-postgres-all lint build-bench bench bench-quick clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

packages: ## Debian's packages that building and testing need: installs them as root, otherwise names them
	.ci/packages

build: ## the binary, target/release/tombolo
	$(CARGO) build --release -p tombolo-cli

static: ## the binary without libraries, for guests: target/x86_64-unknown-linux-gnu/release/tombolo
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
		$(CARGO) build --release -p tombolo-cli --target x86_64-unknown-linux-gnu

dist: ## the program that packages ship, static and stripped: target/x86_64-unknown-linux-gnu/dist/tombolo
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
		$(CARGO) build --profile dist -p tombolo-cli --target x86_64-unknown-linux-gnu
	@bytes=$$(stat -c %s $(DIST)) && echo "$(DIST): $$bytes bytes" && test "$$bytes" -le $(DIST_BYTES_MAX) || \
		{ echo "tombolo has more than $(DIST_BYTES_MAX) bytes: see what came in with nm --size-sort and cargo tree" >&2; exit 1; }

demo: ## share a source tree with a real guest and build it there
	tests/guests/setup
	$(MAKE) build
	demo/run

test: ## everything that has to pass
	tests/timed $(MAKE) packages test-rust test-planted test-mount test-posix test-postgres test-guests test-crash test-chaos

test-long: ## the same at full size: an hour of fuzzing, every guest on both beds, a thousand kills
	tests/timed $(MAKE) packages dist test-rust test-planted test-address test-fuzz test-mount test-posix test-postgres-all test-guests-all test-crash-all test-chaos-all

test-rust: ## unit, property, conformance and command-line tests
	$(CARGO) test --workspace --no-fail-fast

test-planted: ## plants bugs in a copy of the tree and expects the suite to catch each
	tests/planted/run

test-fuzz: ## each fuzz target for five minutes, after all that it has met before
	fuzz/run all 300

test-address: ## rings, bells and regions under the address sanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/asan \
		ASAN_OPTIONS=handle_sigbus=0 $(CARGO) test --target x86_64-unknown-linux-gnu \
		-p tombolo-mem -p tombolo-shm $(ADDRESS_TESTS)

test-mount: build ## the conformance suite through FUSE mounts of this host, and what strict asks the server
	tests/mount/run
	tests/strict/run

test-posix: build ## pjdfstest and fsx through a FUSE mount
	tests/posix/on-mount

test-postgres: build ## a database on a mount, under load
	tests/postgres/run

test-postgres-all: build ## the same, and killed on mounts of each kind
	tests/postgres/run
	tests/postgres/run --all

test-guests: build static ## real guests: all cases in UML, a job of each kind in QEMU
	tests/guests/setup
	tests/guests/cases --bed uml
	tests/guests/cases --bed qemu $(QEMU_JOBS)

test-guests-all: build static ## real guests: all cases in both
	tests/guests/setup
	tests/guests/cases

test-crash: build ## the NFS server killed under load, and what it syncs before it says stable
	tests/crash/run

test-crash-all test-chaos-all: test-%-all: build
	tests/$*/run --all

test-chaos: build ## either side of a link killed, stopped and started under load
	tests/chaos/run

lint: ## formatter, clippy, shellcheck, whether the planted bugs' patches apply
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	# The fuzz targets are a workspace of their own; to check them takes no libFuzzer.
	CUSTOM_LIBFUZZER_PATH=/libfuzzer.a CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target} $(CARGO) check --quiet --manifest-path fuzz/Cargo.toml
	if command -v shellcheck >/dev/null; then git ls-files -z | xargs -0 grep -lZE '^#!/(usr/)?bin/(env )?(ba)?sh' | xargs -0 shellcheck -x; fi
	tests/planted/run --check

build-bench: build
	$(CARGO) build --release -p tombolo-bench

bench-quick: build-bench ## one quick pass of each benchmark, to see that it runs
	target/release/tombolo-bench all --quick

bench: build-bench ## every table of docs/benchmarks.md that this machine can run
	target/release/tombolo-bench all --out target/bench-reports

clean: ## build output and caches
	$(CARGO) clean
	rm -rf .cache
