# shellcheck shell=bash
# A disk whose writes are logged; source it after tests/mount/lib.sh. $scratch/base is its initial content.

need_packages fuse3 e2fsprogs qemu-system-common
power_loss=$(program tombolo-power-loss)
kept=${TMPDIR:-/tmp}/tombolo-power-loss
daemon=

# Mounts a file system in a file, among the other data of this machine.
mount_disk() { # FILE [OPTIONS]
    mount -o "loop${2:+,$2}" "$1" "$scratch/tree"
    mounts+=("$scratch/tree")
}

# From here on writes to the file `export` go to `logged`, with an entry in `log`; fsync is a flush.
start_log() {
    local begun=$SECONDS
    cp --sparse=always "$scratch/base" "$scratch/logged"
    : >"$scratch/log"
    : >"$scratch/export"
    qemu-storage-daemon --blockdev "driver=file,filename=$scratch/logged,node-name=disk" --blockdev "driver=file,filename=$scratch/log,node-name=log" \
        --blockdev driver=blklogwrites,file=disk,log=log,node-name=logged \
        --export "type=fuse,id=export,node-name=logged,mountpoint=$scratch/export,writable=on" >"$scratch/daemon" 2>&1 &
    daemon=$!
    until [ -s "$scratch/export" ]; do
        kill -0 $daemon 2>/dev/null || die "qemu-storage-daemon ended: $(cat "$scratch/daemon")"
        ((SECONDS - begun < 10)) || die "qemu-storage-daemon exports nothing: $(cat "$scratch/daemon")"
        sleep 0.1
    done
    mounts+=("$scratch/export")
}

# Prints the number of entries in the log so far.
entries() { od -An -t u8 -j 16 -N 8 "$scratch/log" | tr -d ' '; }

# Waits until all writes are in the log.
end_log() {
    kill "$daemon"
    wait "$daemon" || true
    daemon=
    make_image "$scratch/image" "$(entries)" 0
    cmp "$scratch/image" "$scratch/logged"
    rm "$scratch/image" "$scratch/logged"
}

make_image() { # FILE CUT SEED
    cp --sparse=always "$scratch/base" "$1"
    "$power_loss" image "$scratch/log" "$2" "$3" "$1"
}

# Simulates some power losses among these entries of the log: calls `recover CUT SEED` for each.
losing=
lose_power() { # FROM TO COUNT
    local choices
    mapfile -t choices < <("$power_loss" choices "$scratch/log" "$1" "$2" "$3")
    for losing in "${choices[@]}"; do
        # shellcheck disable=SC2086 # two words
        recover $losing
    done
    losing=
    echo "${#choices[@]} power losses among $(($2 - $1)) writes and flushes"
}

# Retains the files of a failed case.
keep_failure() { # WHAT FILE...
    [ -n "$losing" ] || return 0
    mkdir -p "$kept"
    echo "$scratch" >"$scratch/place"
    (cd "$scratch" && cp --sparse=always base log times place "${@:2}" "$kept")
    echo "failed at CUT and SEED $losing; to retry: $1 $losing" >&2
}

# Continues with the files retained by a failure.
take_kept() {
    # A server identifies a tree by its path.
    mv "$scratch" "$(cat "$kept/place")"
    scratch=$(cat "$kept/place")
    cp --sparse=always "$kept"/* "$scratch"
}
