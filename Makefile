# `make demo` shows the main job; `make test` runs every test. Both install what they need when run as root.

SHELL := /bin/bash
CARGO ?= cargo
# Those in which one side reads or writes what the other side may change.
ADDRESS_TESTS := --lib --test hostile --test area --test bells --test shared --test vectors --test stranger

.PHONY: help packages build static demo test test-rust test-planted test-fuzz test-address test-mount test-guests test-crash test-chaos test-posix lint bench bench-quick clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

packages: ## Debian's packages that building and testing need: installs them as root, otherwise names them
	.ci/packages

build: ## the binary, target/release/tombolo
	$(CARGO) build --release -p tombolo-cli

static: ## the binary without libraries, for guests: target/x86_64-unknown-linux-gnu/release/tombolo
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
		$(CARGO) build --release -p tombolo-cli --target x86_64-unknown-linux-gnu

demo: ## share a source tree with a real guest and build it there
	tests/guests/setup
	$(MAKE) build
	demo/run

test: packages test-rust test-planted test-fuzz test-mount test-posix test-guests test-crash test-chaos ## everything that has to pass

test-rust: ## unit, property, conformance and command-line tests
	$(CARGO) test --workspace --no-fail-fast

test-planted: ## plants bugs in a copy of the tree and expects the suite to catch each
	tests/planted/run

test-fuzz: ## each fuzz target for a few seconds, after all that it has met before
	fuzz/run all 5

test-address: ## rings, bells and regions under the address sanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/asan \
		ASAN_OPTIONS=handle_sigbus=0 $(CARGO) test --target x86_64-unknown-linux-gnu \
		-p tombolo-mem -p tombolo-shm $(ADDRESS_TESTS)

test-mount: build ## the conformance suite through FUSE mounts of this host, and what strict asks the server
	tests/mount/run
	tests/strict/run

test-posix: build ## pjdfstest and fsx through a FUSE mount
	tests/posix/on-mount

test-guests: build static ## real guests: UML and QEMU
	tests/guests/setup
	tests/guests/cases

test-crash: build ## the NFS server killed under load, and what it syncs before it says stable
	tests/crash/run

test-chaos: build ## either side of a link killed, stopped and started under load
	tests/chaos/run

lint: ## formatter, clippy, shellcheck
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	if command -v shellcheck >/dev/null; then git ls-files -z | xargs -0 grep -lZE '^#!/(usr/)?bin/(env )?(ba)?sh' | xargs -0 shellcheck -x; fi

bench-quick: build ## one quick pass of each benchmark, to see that it runs
	target/release/tombolo bench all --quick

bench: build ## every table of docs/benchmarks.md that this machine can run
	target/release/tombolo bench all

clean: ## build output and caches
	$(CARGO) clean
	rm -rf .cache
