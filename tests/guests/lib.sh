# shellcheck shell=bash
# Shared by the scripts of the tests; source it.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=$repository/.cache
# shellcheck disable=SC2034 # used by the scripts
prepared=$cache/guests

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# What the kernel's NFS client is told: nothing is asked of a portmapper, and locks stay in the guest, as the server has
# no NLM.
nfs_options() { # PORT
    echo "vers=3,proto=tcp,mountproto=tcp,port=$1,mountport=$1,hard,nolock,addr=10.0.2.2"
}

# Goes on as PROGRAM in a process namespace of its own, so that nothing that it starts outlives it (tests/contained).
contain() { # PROGRAM [ARGUMENT]…
    if [ -z "${TOMBOLO_CONTAINED-}" ]; then TOMBOLO_CONTAINED=yes exec "$repository/tests/contained" "$@"; fi
}

# Whether this is a network namespace that `unshare_network` made. Only that is sure to be one: a first process whose namespace cannot be
# read looks like another's.
has_own_network() {
    [ "${TOMBOLO_NETWORK-}" = "$(readlink /proc/self/ns/net)" ]
}

# Goes on as PROGRAM in a network namespace of its own, with nothing in it but loopback, up.
unshare_network() { # PROGRAM [ARGUMENT]…
    # shellcheck disable=SC2016 # the inner shell expands
    exec unshare --net sh -c 'ip link set lo up && TOMBOLO_NETWORK=$(readlink /proc/self/ns/net) exec "$@"' sh "$@"
}

# Stops here, before anything is built or changed, unless this is root.
need_root() {
    [ "$(id -u)" = 0 ] || die "needs root: $1"
}

# Installs Debian packages that are missing, as root; otherwise says what to install and stops.
need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    if [ "$(id -u)" != 0 ]; then
        die "missing Debian packages; as root: apt-get install --no-install-recommends ${missing[*]}"
    fi
    echo "installing ${missing[*]}"
    local quietly=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
    local install=("${quietly[@]}" install -y --no-install-recommends "${missing[@]}")
    "${install[@]}" >/dev/null 2>&1 ||
        { "${quietly[@]}" update && "${install[@]}" >/dev/null; } ||
        die "apt-get could not install ${missing[*]}"
}

# Installs one crate's binaries into .cache/NAME/bin, in a release build, once per version.
need_crate() {
    local into=$cache/$1 crate=$2 version=$3
    if grep -qs "\"$crate $version " "$into/.crates.toml"; then return 0; fi
    command -v cargo >/dev/null || die "cargo is missing: install the Rust toolchain (https://rustup.rs)"
    echo "building $crate $version (some minutes, once)"
    cargo install --quiet --locked --root "$into" "$crate" --version "$version" ||
        die "cargo could not install $crate $version"
}

# Prints where a program is that `make programs` has built: `tombolo`, or one of the tests' own. TOMBOLO names another `tombolo`.
program() { # NAME
    local path=${CARGO_TARGET_DIR:-$repository/target}/x86_64-unknown-linux-gnu/release/$1
    [ "$1" != tombolo ] || path=${TOMBOLO:-$path}
    [ -x "$path" ] || die "no $1 at $path: make programs"
    echo "$path"
}

# Prints where the library for programs in C is: its newest build, which may be that of the Rust tests. TOMBOLO_LIBRARY names another.
c_library() {
    local built newest=${TOMBOLO_LIBRARY:-}
    if [ -z "$newest" ]; then
        for built in "$repository"/target/{release,planted/debug/deps,debug/deps}/libtombolo.so; do
            if [ -e "$built" ] && [ ! "$built" -ot "$newest" ]; then newest=$built; fi
        done
    fi
    [ -e "$newest" ] || make -s -C "$repository" c-library >&2
    realpath "${newest:-$repository/target/release/libtombolo.so}"
}

# Prints where a `tombolo` is that runs in any guest: linked statically, and without what only debuggers read.
static_tombolo() {
    local built stripped
    built=${TOMBOLO_STATIC:-$(TOMBOLO='' program tombolo)}
    stripped=$prepared/tombolo.$(cksum <<<"$built" | cut -d ' ' -f 1)
    if [ ! -e "$stripped" ] || [ "$built" -nt "$stripped" ]; then
        # Cases run beside each other.
        strip -o "$stripped.$$" "$built"
        mv "$stripped.$$" "$stripped"
    fi
    echo "$stripped"
}
