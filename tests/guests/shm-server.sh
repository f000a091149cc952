#!/bin/sh
# Serves $served from a guest (a directory `tree` that it makes; by default in memory), over the memory at $serving, until a client makes the
# file `over` there and leaves. Asked by a file
# `kill`, it kills its server, starts another and makes `again`. Ends with what is in the tree's `result`. Runs in busybox too.
set -eu

: "${serving:?where the memory is}"
tree=${served:-/run/tree}
said=/run/serve.out

serve() {
    : >$said
    tombolo serve "$tree" --shm-file "$serving" >$said 2>&1 &
    server=$!
    until grep -q '^ready shm-file .* export=/tree$' $said; do
        alive
        sleep 0.05
    done
}

alive() {
    kill -0 "$server" 2>/dev/null || {
        echo "the server ended: $(cat $said)"
        exit 1
    }
}

# No client is linked any more. The list is a second old.
left() {
    tombolo links | grep -q "^no clients"
}

mkdir "$tree"
cp /root/source.tar.gz "$tree/"
serve
kills=0
until [ -e "$tree/over" ]; do
    if [ -e "$tree/kill" ]; then
        kill -9 "$server"
        wait "$server" 2>/dev/null || :
        rm "$tree/kill"
        serve
        kills=$((kills + 1))
        echo $kills >"$tree/again"
    fi
    alive
    sleep 0.1
done
waited=0
until left; do
    sleep 0.2
    waited=$((waited + 1))
    [ $waited -lt 150 ] || {
        echo "the client is still there: $(tombolo links)"
        exit 1
    }
done
kill "$server"
wait "$server" || {
    echo "the server's end: status $?: $(cat $said)"
    exit 1
}
grep -v -e '^ready' -e '^  ' $said || :
[ ! -e "$tree/job" ]
cd "$tree/result"
echo "served $(find . -type f | wc -l) files, contents $(find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d ' ' -f 1)"
