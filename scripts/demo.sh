#!/bin/bash
# Formats a volume in a local directory, mounts it, and measures it beside that directory: plain directory, mount and
# library in one run, with the ceilings. Prints the table, writes a page, and leaves nothing else behind.
# usage: demo.sh VARVE PAGE
set -euo pipefail
varve=$1
page=$2

work=$(mktemp -d "${TMPDIR:-/tmp}/varve-demo-XXXXXX")
server=
cleanup() {
  local status=$?
  trap - EXIT INT TERM
  if grep -qs " $work/mnt " /proc/self/mountinfo; then
    "$varve" umount "$work/mnt" || umount -l "$work/mnt" 2>/dev/null || fusermount3 -uz "$work/mnt" || true
  fi
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$work/mnt" "$work/plain"
"$varve" format "$work/store"
# The library and the mount are two clients of one volume, so a server stands between them.
"$varve" serve "$work/store" --unix-dir "$work/sockets" >"$work/server.log" 2>&1 &
server=$!
for _ in $(seq 100); do
  if "$varve" status "$work/store" >/dev/null 2>&1 && [ -e "$work/store/servers/current.toml" ]; then break; fi
  sleep 0.1
done
"$varve" mount "$work/store" "$work/mnt" --log-file "$work/mount.log" || { cat "$work/server.log"; exit 1; }
"$varve" bench mdtest --files 10000 --clients 1,8 --repeat 3 --ceilings \
  --via "path:$work/plain" --via "mount:$work/mnt" --via "library:$work/store" --page "$page"
"$varve" umount "$work/mnt"
# A Pilatus 6M at 25 Hz into one NeXus file. It ends with 3 where the machine is too slow and frames were dropped.
"$varve" detector simulate --model pilatus6m --rate 25 --frames 100 --out "$work/run.h5" || [ $? = 3 ]
if command -v h5ls >/dev/null; then h5ls -r "$work/run.h5"; fi
echo
echo "The page with the plots: $page"
