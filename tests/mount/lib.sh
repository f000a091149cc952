# shellcheck shell=bash
# Mounting a directory through Tombolo for the length of a script; source it after tests/guests/lib.sh.

tombolo=${TOMBOLO:-$repository/target/release/tombolo}
scratch=
mounts=()

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

clear_scratch() {
    local index
    for ((index = ${#mounts[@]} - 1; index >= 0; index--)); do
        mountpoint -q "${mounts[index]}" || continue
        "$tombolo" umount "${mounts[index]}" 2>/dev/null || umount -l "${mounts[index]}" || true
    done
    mounts=()
    [ -z "$scratch" ] || rm -rf "$scratch"
    scratch=
}
