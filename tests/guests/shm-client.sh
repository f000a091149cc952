#!/bin/sh
# usage: shm-client.sh ENDPOINT DIRECTORY
# Mounts ENDPOINT, which shm-server.sh serves, does a developer's job there, has the server killed, goes on, and unmounts. Prints what
# workload.sh prints. With $DIRECT it also writes and reads past all caches. Runs in busybox too.
set -eu

endpoint=$1
directory=$2

await() {
    waited=0
    until "$@" 2>"$why"; do
        sleep 0.2
        waited=$((waited + 1))
        [ "$waited" -lt 300 ] || {
            echo "waited in vain for: $*: $(cat "$why")"
            exit 1
        }
    done
}

# What the mount has to say of a failure, such as a link that was lost.
say_why() {
    [ "$1" = 0 ] || tail -n 5 "${XDG_STATE_HOME:-/var/lib}"/tombolo/mount-*/log 2>/dev/null || :
    exit "$1"
}
trap 'say_why $?' EXIT

why=$(mktemp)
await tombolo mount "$endpoint" "$directory"
workload.sh "$directory" "$directory/source.tar.gz"

if [ -n "${DIRECT:-}" ]; then
    head -c 5242880 /dev/urandom >"$why"
    dd if="$why" of="$directory/direct" bs=2M oflag=direct 2>/dev/null
    dd if="$directory/direct" bs=3M iflag=direct 2>/dev/null | cmp - "$why"
    rm "$directory/direct"
fi

# What was synced outlives the server, and so does a file that is held.
exec 3>>"$directory/held"
echo before >&3
seq 100000 | dd of="$directory/before" conv=fsync 2>/dev/null
: >"$directory/kill"
await test -e "$directory/again"
echo after >&3
exec 3>&-
printf 'before\nafter\n' | cmp - "$directory/held"
rm "$directory/held"
seq 100000 | cmp - "$directory/before"
seq 200000 >"$directory/after"
seq 200000 | cmp - "$directory/after"
rm "$directory/before" "$directory/after"
: >"$directory/over"
tombolo umount "$directory"
rm "$why"
