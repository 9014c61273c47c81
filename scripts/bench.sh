#!/bin/bash
# Measures a volume at length on a file system of its own: a fresh ext4 in an image on a loop device where this is
# root's machine (a worn or shared file system beneath would be measured instead), else a local directory.
# usage: bench.sh VARVE PAGE JSON
set -euo pipefail
varve=$1
page=$2
json=$3

work=$(mktemp -d "${TMPDIR:-/tmp}/varve-bench-XXXXXX")
disk=$work/disk
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
  if grep -qs " $disk " /proc/self/mountinfo; then umount "$disk" || umount -l "$disk" || true; fi
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$work/mnt" "$disk"
if [ "$(id -u)" = 0 ]; then
  truncate -s 16G "$work/disk.img"
  if ! { mkfs.ext4 -q -F "$work/disk.img" && mount -o loop "$work/disk.img" "$disk"; }; then
    echo "no loop device here: measuring in ${TMPDIR:-/tmp} itself" >&2
  fi
fi
mkdir "$disk/plain"
"$varve" format "$disk/store"
"$varve" serve "$disk/store" --unix-dir "$work/sockets" >"$work/server.log" 2>&1 &
server=$!
for _ in $(seq 100); do
  if [ -e "$disk/store/servers/current.toml" ]; then break; fi
  sleep 0.1
done
"$varve" mount "$disk/store" "$work/mnt" --log-file "$work/mount.log" || { cat "$work/server.log"; exit 1; }
"$varve" bench mdtest --files 100000 --clients 1,2,8 --repeat 5 --ceilings \
  --via "path:$disk/plain" --via "mount:$work/mnt" --via "library:$disk/store" --page "$page" --save "$json"
"$varve" bench stream --bytes 1GiB --clients 1,2 --via "path:$disk/plain" --via "mount:$work/mnt"
"$varve" umount "$work/mnt"
echo
echo "The page with the plots: $page; the figures: $json"
