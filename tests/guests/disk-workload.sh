#!/bin/bash
# usage: disk-workload.sh make
#        disk-workload.sh run ROUNDS SECONDS NAME=DEVICE…
# What databases and other programs do to a guest's disks. `make` puts a file for fio and a database for pgbench on the disk that is mounted at
# /mnt/disk. `run` uses such disks in turn, SECONDS for each phase on each disk, and prints a line for each: the disk's name, the phase, operations or
# bytes in each second, and `/s` or `B/s`; before that a line that begins with `=`. What is mounted at /mnt/disk takes part as `own`.
# fio goes past the guest's page cache, but for `fsync`, whose writes go through it and the file system's journal.
set -euo pipefail

programs=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
fio_bytes=256M

as_postgres() {
    (cd / && setpriv --reuid postgres --regid postgres --clear-groups -- \
        env -i "HOME=$disk/home" LC_ALL=C.UTF-8 "PATH=$programs:$PATH" "$@")
}

start_postgres() {
    as_postgres pg_ctl start -s -w -t 120 -D "$disk/home/data" -l "$disk/home/log" -o '-k /dev/shm' >/dev/null
}

stop_postgres() {
    as_postgres pg_ctl stop -s -w -m fast -D "$disk/home/data"
}

make() {
    fio --name=lay-out --filename="$disk/fio" --rw=write --bs=1M --size=$fio_bytes --end_fsync=1 --output=/dev/null
    mkdir "$disk/home"
    chown postgres: "$disk/home"
    as_postgres initdb -A trust -D "$disk/home/data" >/dev/null
    printf '%s\n' "listen_addresses = ''" 'shared_buffers = 16MB' 'wal_sync_method = fdatasync' >>"$disk/home/data/postgresql.conf"
    start_postgres
    as_postgres pgbench -h /dev/shm -i -q -s 5 postgres 2>/dev/null
    stop_postgres
}

fio_phase() { # iops|bw_bytes OPTION…
    local what=$1 unit=/s
    [ "$what" = iops ] || unit=B/s
    shift
    echo "= $name $phase"
    fio --name=phase --filename="$disk/fio" --size=$fio_bytes --time_based --runtime="$seconds" --randrepeat=0 --output-format=json "$@" |
        jq -r --arg begin "$name $phase" --arg what "$what" --arg unit $unit '.jobs[0] | "\($begin) \(.read[$what] + .write[$what]) \($unit)"'
}

pgbench_phase() {
    start_postgres
    echo "= $name $phase"
    as_postgres pgbench -h /dev/shm -n -c 4 -T $((seconds * 2)) postgres 2>/dev/null | sed -n "s/^tps = \([0-9.]*\) .*/$name $phase \1 \/s/p"
    stop_postgres
}

use() {
    local direct=(--direct=1 --ioengine=libaio --bs=4k)
    case $phase in
    random-read) fio_phase iops "${direct[@]}" --rw=randread ;;
    random-write) fio_phase iops "${direct[@]}" --rw=randwrite ;;
    random-read-32) fio_phase iops "${direct[@]}" --rw=randread --iodepth=32 ;;
    random-write-32) fio_phase iops "${direct[@]}" --rw=randwrite --iodepth=32 ;;
    sequential-read) fio_phase bw_bytes --direct=1 --bs=1M --rw=read ;;
    sequential-write) fio_phase bw_bytes --direct=1 --bs=1M --rw=write ;;
    fsync) fio_phase iops --bs=4k --rw=randwrite --fsync=1 ;;
    pgbench) pgbench_phase ;;
    esac
}

run() { # ROUNDS SECONDS NAME=DEVICE…
    local rounds=$1 names=(own) at
    seconds=$2
    for at in "${@:3}"; do
        names+=("${at%%=*}")
        # QEMU's storage daemon has a cache, and tells the guest at first that it has none: the guest would flush nothing.
        echo write back >"/sys/block/$(basename "$at")/cache_type"
        mkdir "/mnt/${at%%=*}"
        mount "${at#*=}" "/mnt/${at%%=*}"
    done
    ln -s disk /mnt/own
    for ((round = 0; round < rounds; round++)); do
        for phase in random-read random-write random-read-32 random-write-32 sequential-read sequential-write fsync pgbench; do
            for name in "${names[@]:round % ${#names[@]}}" "${names[@]:0:round % ${#names[@]}}"; do
                disk=/mnt/$name
                use
            done
        done
    done
}

disk=/mnt/disk
"$@"
