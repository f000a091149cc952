#!/bin/sh
# usage: workload.sh DIRECTORY TARBALL
# A developer's job in a directory: unpack a C project, build it, search it, list it by name and by size, checksum it,
# copy it, delete it.
# Leaves the copy in DIRECTORY/result. Prints one line per phase with its time, and lines that start with `=`, which
# are the same wherever the job runs. Without a compiler the build is left out, and said to be. $TOMBOLO_PAUSE seconds
# pass after each phase. Runs in busybox too.
set -eu

directory=$1
tarball=$2
job=$directory/job
result=$directory/result

# Hundredths of a second; unlike `date`, the same in busybox.
now() {
    awk '{ printf "%d", $1 * 100 }' /proc/uptime
}

phase() {
    name=$1
    shift
    from=$(now)
    "$@"
    took=$(($(now) - from))
    if [ $took -gt 0 ]; then
        printf '%-9s %d.%02d s\n' "$name" $((took / 100)) $((took % 100))
    else
        printf '%-9s < 0.01 s\n' "$name"
    fi
    [ -z "${TOMBOLO_PAUSE:-}" ] || sleep "$TOMBOLO_PAUSE"
}

unpack() {
    mkdir "$job"
    tar -xzf "$tarball" -C "$job"
}

build() {
    log=$(mktemp)
    case $(ls "$job") in
    lua-*) make -s -C "$job"/lua-* linux ;;
    zstd-*) make -s -C "$job"/zstd-*/programs zstd CFLAGS=-O1 ;;
    esac >"$log" 2>&1 || {
        cat "$log" >&2
        exit 1
    }
    rm "$log"
}

search() {
    matches=$(grep -r -l static "$job" | wc -l)
}

by_name() {
    find "$job" -name '*.h' >/dev/null
}

by_size() {
    find "$job" -size +1k >/dev/null
}

checksum() {
    files=$(cd "$1" && find . -type f | wc -l)
    digest=$(cd "$1" && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d ' ' -f 1)
}

copy() {
    cp -a "$job" "$result"
}

delete() {
    rm -r "$job"
}

phase unpack unpack
case $(ls "$job") in
httpd-*) echo "build     left out: it needs more than a compiler" ;;
*)
    if [ -n "${TOMBOLO_NO_BUILD:-}" ]; then
        echo "build     left out, as asked"
    elif command -v cc >/dev/null; then
        phase build build
    else
        echo "build     left out: no compiler here"
    fi
    ;;
esac
phase search search
phase find by_name
phase stat by_size
phase checksum checksum "$job"
first=$digest
phase copy copy
phase delete delete
phase checksum checksum "$result"
[ "$digest" = "$first" ] || {
    echo "the copy differs from what was copied" >&2
    exit 1
}
[ ! -e "$job" ]
echo "= $files files, $matches with a match, contents $digest"
