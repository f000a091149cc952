# shellcheck shell=bash
# Shared by the cases; each sources it, and runs by hand too: KIND=uml tests/guests/case/10-job.
#   $kind             uml or qemu, from KIND (uml)
#   $work            a scratch directory; $work/tree is what is shared
#   serve SOCKET[,TAG]…  starts a server that shares $tree; more options in $serve_options
#   own_network      goes on in a network namespace of its own, which `serve_nfs` needs
#   serve_nfs [OPTION]…  starts a server that exports $tree by NFS, as /tree at port $nfs_port; its state is in $work/state
#   serve_shm        with `bell` set to a path, both have a bell; starts a server that exports $tree as /tree over shared memory with a guest, which mounts it from
#                    $region with `tombolo` when it gets the options of $with_region
#   shm_region       no server: makes $with_region, with which guests share $work/region; they serve at $serving and mount
#                    from $region, and the host mounts from $host_region
#   serving_guest LOG OPTION…  boots a guest that serves its /run/tree, with source.tar.gz in it, at $serving, behind this script. It kills its
#                    server and starts another when a client makes the file `kill`, and then makes `again`; with `over` it waits
#                    until no client is linked, ends, and says what is in the tree's `result`
#   same_as_native CLIENT-LOG SERVER-LOG  compares what the two say with the same job on this host
#   stop_server      ends the server that was started last
#   guest OPTION…    boots a guest of this kind with the script on standard input
#   guest_behind LOG OPTION…   the same, not waited for; sets $guest_pid
#   until_ok         waits for a command to succeed
#   skip, fail       give up, with a reason
#   note             a line for the summary

# shellcheck source=tests/guests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$repository/tests/guests
contain "$0" "$@"
kind=${KIND:-uml}
work=$(mktemp -d /dev/shm/tombolo-case.XXXXXX)
chmod 755 "$work"
# Whatever it starts has this in its environment (`evidence`).
export TOMBOLO_CASE=${TOMBOLO_CASE:-$work}
mkdir -m 755 "$work/tree"
tree=$work/tree
tombolo=$(program tombolo)
nfs_port=2049
bell=''
servers=()
serve_options=()
scripts=0
# What busybox lacks.
tools=()
[ "$kind" = uml ] || tools=(--add "$(command -v flock)")

end() {
    trap - EXIT
    # Guests first, so that no server sees a client vanish that a case did not mean to kill.
    jobs -p | xargs -r kill 2>/dev/null || true
    for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    # One whose server died is no mount point to mountpoint(1).
    if grep -q " $work/mnt " /proc/mounts; then XDG_RUNTIME_DIR=$work/run "$tombolo" umount "$work/mnt" || umount -l "$work/mnt"; fi
    rm -rf "$work"
}
trap end EXIT
trap 'exit 143' TERM

# Where what is kept of a hang lies; it outlives the case.
evidence_dir() { # WORD
    echo "$repository/target/hung/$(basename "$0").$kind.$1"
}

fail() {
    echo "$*" >&2
    exit 1
}

skip() {
    echo "$*"
    exit 77
}

note() {
    printf '| %s\n' "$*"
}

# Waits until a command succeeds, at most five minutes: guests boot slowly on a busy machine.
until_ok() {
    local end=$((SECONDS + 300))
    while ((SECONDS < end)); do
        if "$@"; then return 0; fi
        sleep 0.05
    done
    fail "waited in vain for: $*"
}

serve() {
    local socket tag arguments=()
    case ${SERVER:-tombolo} in
    tombolo)
        for socket in "$@"; do
            tag=${socket#*,}
            [ "$tag" != "$socket" ] || tag=tombolo
            arguments+=(--virtiofs "${socket%,*},tag=$tag")
        done
        "$tombolo" serve "$tree" "${arguments[@]}" \
            --control "${1%,*}.control" "${serve_options[@]}" >>"$work/server.log" 2>&1 &
        servers+=($!)
        ;;
    virtiofsd)
        for socket in "$@"; do
            tag=${socket#*,}
            [ "$tag" != "$socket" ] || tag=tombolo
            "$cache/peers/bin/virtiofsd" --socket-path "${socket%,*}" --shared-dir "$tree" --tag "$tag" --cache auto \
                --sandbox none --announce-submounts --log-level warn >>"$work/server.log" 2>&1 &
            servers+=($!)
        done
        ;;
    esac
    # Their end is for the case to judge, not for the shell to announce.
    disown "${servers[@]}" 2>/dev/null || true
    for socket in "$@"; do
        until_ok listening "${socket%,*}"
    done
}

listening() {
    kill -0 "${servers[-1]}" 2>/dev/null || fail "the server ended: $(cat "$work/server.log")"
    [ -S "$1" ]
}

# Ports are free there, nothing else reaches the server, and guests of both kinds know it as 10.0.2.2.
own_network() {
    has_own_network && return
    rm -rf "$work"
    unshare_network "$0"
}

serve_nfs() { # [OPTION]…
    [ "${SERVER:-tombolo}" = tombolo ] || skip "$SERVER has no NFS"
    rm -f "$work/control"
    "$tombolo" serve "$tree" --nfs "0.0.0.0:$nfs_port" --state "$work/state" --control "$work/control" "$@" \
        >>"$work/server.log" 2>&1 &
    servers+=($!)
    disown "${servers[-1]}"
    until_ok is_ready
}

serve_shm() {
    [ "${SERVER:-tombolo}" = tombolo ] || skip "$SERVER has no shared memory"
    rm -f "$work/control"
    "$tombolo" serve "$tree" --shm-file "$work/region,size=64M${bell:+,bell=$bell}" --control "$work/control" "${serve_options[@]}" \
        >>"$work/server.log" 2>&1 &
    servers+=($!)
    disown "${servers[-1]}"
    until_ok is_ready
    shm_region
}

shm_region() {
    [ "${SERVER:-tombolo}" = tombolo ] || skip "$SERVER has no shared memory"
    local region=shm+pci: serving=pci:
    [ "$kind" = qemu ] || region=shm+mmapper: serving=mmapper:,size=64M
    # shellcheck disable=SC2034 # for the case
    with_region=(--shm "$work/region,64M" --tombolo --env "region=$region" --env "serving=$serving")
    [ -z "$bell" ] || with_region+=(--bell "$bell")
    # shellcheck disable=SC2034 # for the case
    host_region=shm+file:$work/region
}

# The client's only word to this guest is a file in the tree.
serving_guest() {
    local log=$1
    shift
    guest_behind "$log" "${with_region[@]}" --mem 256M --timeout 300 --add "$here/shm-server.sh" \
        --add "$("$here/fetch-source" lua),root/source.tar.gz" "$@" <<<'shm-server.sh'
}

# What shm-client.sh and shm-server.sh say is what this host says when it does the job itself.
same_as_native() { # CLIENT-LOG SERVER-LOG
    local line
    mkdir "$work/native"
    TOMBOLO_NO_BUILD=yes "$here/workload.sh" "$work/native" "$("$here/fetch-source" lua)" >"$work/native.out"
    while read -r line; do note "$line"; done <"$1"
    diff <(grep '^=' "$work/native.out") <(grep '^=' "$1")
    diff <(sed -n 's/^= \(.*\), .*, \(contents .*\)$/served \1, \2/p' "$work/native.out") "$2"
}

# The control socket comes last.
is_ready() {
    kill -0 "${servers[-1]}" 2>/dev/null || fail "the server ended: $(cat "$work/server.log")"
    [ -S "$work/control" ]
}

# Ends the server that was started last, as an operator does.
stop_server() {
    local server=${servers[-1]}
    kill "$server"
    until_ok ended "$server"
    unset 'servers[-1]'
}

ended() {
    ! kill -0 "$1" 2>/dev/null
}

# The server must outlive its guests.
still_serving() {
    # virtiofsd leaves with its guest, by design.
    [ "${SERVER:-tombolo}" = tombolo ] || return 0
    kill -0 "${servers[-1]}" 2>/dev/null || fail "the server died: $(tail -n 20 "$work/server.log")"
}

script_from_input() {
    script=$work/script.$((scripts += 1))
    { echo '#!/bin/sh' && echo 'set -eu' && cat; } >"$script"
}

guest() {
    script_from_input
    "$here/run" "$kind" "${tools[@]}" "$@" "$script"
}

guest_behind() {
    local log=$1
    shift
    script_from_input
    "$here/run" "$kind" "${tools[@]}" "$@" "$script" </dev/null >"$log" 2>&1 &
    # shellcheck disable=SC2034 # for the case
    guest_pid=$!
}
