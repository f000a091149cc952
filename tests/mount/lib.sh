# shellcheck shell=bash
# Mounting a directory through Tombolo for the length of a script; source it after tests/guests/lib.sh.

need_root "it mounts"
tombolo=$(program tombolo)
scratch=
mounts=()
server=

# Makes the scratch directory: tree/ is shared, mnt/ is where it appears. On tmpfs, or with `ext4` on a fresh ext4.
make_scratch() {
    scratch=$(mktemp -d /dev/shm/tombolo-mount.XXXXXX)
    mkdir "$scratch/tree" "$scratch/mnt"
    if [ "${1:-tmpfs}" = ext4 ]; then
        truncate -s 2G "$scratch/ext4.img"
        mkfs.ext4 -q "$scratch/ext4.img"
        mount -o loop "$scratch/ext4.img" "$scratch/tree"
        mounts+=("$scratch/tree")
    fi
    chmod 0777 "$scratch" "$scratch/tree"
}

# Mounts tree/ at mnt/ with the given -o options.
mount_scratch() {
    "$tombolo" mount "dir:$scratch/tree" "$scratch/mnt" ${1:+-o "$1"}
    mounts+=("$scratch/mnt")
}

# Serves tree/ by NFS on this host, and mounts that at mnt/ with the given -o options.
mount_scratch_nfs() {
    local port=$((20000 + RANDOM % 10000)) begun=$SECONDS options=${1:-}
    "$tombolo" serve "$scratch/tree" --nfs "127.0.0.1:$port" --squash none --state "$scratch/state" \
        --control "$scratch/control" >"$scratch/server.log" 2>&1 &
    server=$!
    until "$tombolo" mount "nfs://127.0.0.1:$port/tree" "$scratch/mnt" ${options:+-o "$options"}; do
        kill -0 "$server" 2>/dev/null || die "the server ended: $(cat "$scratch/server.log")"
        ((SECONDS - begun < 10)) || die "the server cannot be mounted: $(cat "$scratch/server.log")"
        sleep 0.1
    done
    mounts+=("$scratch/mnt")
}

# Serves tree/ over shared memory with processes of this host, and mounts that at mnt/ with the given -o options. What follows those is
# said to the server.
mount_scratch_shm() {
    local begun=$SECONDS options=${1:-}
    "$tombolo" serve "$scratch/tree" --shm "$scratch/links" --state "$scratch/state" --control "$scratch/control" "${@:2}" \
        >"$scratch/server.log" 2>&1 &
    server=$!
    until grep -qs '^ready control' "$scratch/server.log"; do
        kill -0 "$server" 2>/dev/null || die "the server ended: $(cat "$scratch/server.log")"
        ((SECONDS - begun < 10)) || die "the server is not ready: $(cat "$scratch/server.log")"
        sleep 0.1
    done
    "$tombolo" mount "shm:$scratch/links/tree" "$scratch/mnt" ${options:+-o "$options"}
    mounts+=("$scratch/mnt")
}

# Serves tree/ by NFS on this host, and mounts a cache of that at mnt/ with the given contract; behind a second cache, if that is named too.
mount_scratch_proxy() {
    local port=$((20000 + RANDOM % 10000)) second=$((30000 + RANDOM % 2000))
    local far=nfs://127.0.0.1:$port/tree
    start_proxy server serve "$scratch/tree" --nfs "127.0.0.1:$port" --squash none --state "$scratch/state"
    if [ -n "${2:-}" ]; then
        start_proxy second proxy "$far" --cache "$scratch/second" --contract "$2" --nfs "127.0.0.1:$second" \
            --squash none --state "$scratch/state2"
        far=nfs://127.0.0.1:$second/tree
    fi
    start_proxy first proxy "$far" --cache "$scratch/first" --contract "$1" --fuse "$scratch/mnt,allow_other"
}

# Serves tree/ by NFS on this host, and mounts it at mnt/ with changes that are kept back.
mount_scratch_write_back() {
    local port=$((20000 + RANDOM % 10000))
    far=nfs://127.0.0.1:$port/tree
    start_proxy server serve "$scratch/tree" --nfs "127.0.0.1:$port" --squash none --state "$scratch/state"
    start_write_back
}

far=
start_write_back() {
    start_proxy first proxy "$far" --cache "$scratch/first" --mode write-back --contract exclusive --take-lease \
        --fuse "$scratch/mnt,allow_other"
}

kill_write_back() {
    kill -KILL "${servers[-1]}"
    wait "${servers[-1]}" 2>/dev/null || true
    unset 'servers[-1]'
    umount -l "$scratch/mnt"
}

# From here on tree/ has what mnt/ shows.
flush_write_back() {
    "$tombolo" session flush --control "$scratch/first.sock" >/dev/null
}

start_proxy() { # name, words
    local begun=$SECONDS log=$scratch/$1.log
    # One of that name may have said before that it is ready.
    : >"$log"
    "$tombolo" "${@:2}" --control "$scratch/$1.sock" >"$log" 2>&1 &
    servers+=($!)
    until grep -qs '^ready control' "$log"; do
        kill -0 $! 2>/dev/null || die "$1 ended: $(cat "$log")"
        ((SECONDS - begun < 10)) || die "$1 is not ready: $(cat "$log")"
        sleep 0.1
    done
}

servers=()
stop_server() {
    local pid index
    # The last that was started goes first: it asks the others.
    for ((index = ${#servers[@]} - 1; index >= 0; index--)); do
        pid=${servers[index]}
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    servers=()
    [ -n "$server" ] || return 0
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
}

clear_scratch() {
    local index
    for ((index = ${#mounts[@]} - 1; index >= 0; index--)); do
        mountpoint -q "${mounts[index]}" || continue
        # What is mounted from a server goes before it, what it serves after it.
        [ "${mounts[index]}" != "$scratch/tree" ] || stop_server
        "$tombolo" umount "${mounts[index]}" 2>/dev/null || umount -l "${mounts[index]}" || true
    done
    mounts=()
    stop_server
    [ -z "$scratch" ] || rm -rf "$scratch"
    scratch=
}
