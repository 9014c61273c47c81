#!/bin/bash
# Formats a volume, mounts it, and compares it with the plain directory beneath it: create, stat and delete by directory,
# mount and library. Then records frames of a simulated detector. It ends with a table and the name of the page with the
# plots. As root it works on a new ext4 in an image, else in DIRECTORY. It removes everything but the page.
# usage: demo.sh [--verbose] VARVE PAGE DIRECTORY
# Environment: DEMO_FILES, the number of files; DEMO_MODEL, the detector, as for `varve detector simulate --model`.
set -euo pipefail
verbose=
if [ "$1" = --verbose ]; then
  verbose=1
  shift
fi
varve=$1
page=$2
files=${DEMO_FILES:-10000}
model=${DEMO_MODEL:-pilatus6m}
work=$(mktemp -d "$3/varve-demo-XXXXXX")
disk=$work/disk
server=

is_mounted() { grep -qs " $1 " /proc/self/mountinfo; }
end_server() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
  fi
}
cleanup() {
  local status=$?
  trap - EXIT
  # A second Ctrl-C must not leave a mount behind.
  trap '' INT TERM HUP
  if is_mounted "$work/mnt"; then
    "$varve" umount --force --wait 10s "$work/mnt" >&2 || umount -l "$work/mnt" 2>/dev/null || fusermount3 -uz "$work/mnt" || true
  fi
  end_server
  if is_mounted "$disk"; then umount "$disk" || umount -l "$disk" || true; fi
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# Mounts a new ext4 in a sparse image. The kernel frees the loop device with the unmount, because it is detached here.
mount_image() {
  local loop
  truncate -s 3G "$work/disk.img" && mkfs.ext4 -q -F "$work/disk.img" 2>/dev/null || return 1
  loop=$(losetup --find --show "$work/disk.img" 2>/dev/null) || return 1
  mount "$loop" "$disk" 2>/dev/null || { losetup --detach "$loop"; return 1; }
  losetup --detach "$loop"
}
# Prints the value of a number in one line of JSON.
number() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }
# Runs a command of the program and shows its output only with --verbose.
quietly() {
  "$varve" "$@" >"$work/output" || fail "varve $1 failed"
  if [ -n "$verbose" ]; then cat "$work/output"; fi
}
# A shell that was started with SIGINT ignored cannot trap it; the command that it runs still ends with 130.
fail() {
  if [ $? = 130 ]; then exit 130; fi
  echo "demo: $1" >&2
  cat "$work"/*.log >&2 2>/dev/null || true
  exit 1
}

PATH="$PATH:/usr/sbin:/sbin"
mkdir "$work/mnt" "$disk"
if [ "$(id -u)" = 0 ] && mount_image; then
  where="a new ext4 with a journal, in an image in $3"
else
  rm -f "$work/disk.img"
  where="the directory $3 ($(stat -f -c %T "$3"))"
fi
echo "demo: working on $where" >&2
mkdir "$disk/plain"
quietly format "$disk/store"
# The library and the mount are two clients of one volume, so a server runs between them. It has its own session: Ctrl-C
# must end the benchmark first, and the server after the unmount.
setsid "$varve" serve "$disk/store" --unix-dir "$work/sockets" >"$work/server.log" 2>&1 &
server=$!
for _ in $(seq 100); do
  if [ -e "$disk/store/servers/current.toml" ]; then break; fi
  kill -0 "$server" 2>/dev/null || fail "the server has ended"
  sleep 0.1
done
quietly mount "$disk/store" "$work/mnt" --log-file "$work/mount.log"
echo "demo: creating, reading and deleting files, about half a minute" >&2
form=--brief
if [ -n "$verbose" ]; then form=; fi
# shellcheck disable=SC2086
"$varve" bench mdtest --files "$files" --clients 1,8 --repeat 3 --ceilings --page "$page" $form \
  --via "path:$disk/plain" --via "mount:$work/mnt" --via "library:$disk/store" >"$work/table" || fail "the benchmark failed"
quietly umount "$work/mnt"
end_server

# The detector part. A run without a rate shows how many frames a second this machine carries. The run that counts uses at
# most half of that, and half again if frames were dropped all the same.
echo "demo: recording frames of a simulated detector" >&2
"$varve" --json detector simulate --model "$model" --frames 15 --out "$disk/probe.h5" >"$work/probe" || fail "the detector failed"
carried=$(number frames_per_s <"$work/probe")
rate=$(awk -v carried="$carried" 'BEGIN { split("25 20 10 5 2 1", all); for (i = 1; i < 6; i++) if (all[i] <= carried / 2) break; print all[i] }')
while true; do
  rm -f "$disk"/run.h5*
  status=0
  "$varve" --json detector simulate --model "$model" --rate "$rate" --frames $((rate * 4)) --out "$disk/run.h5" \
    >"$work/run" || status=$?
  if [ "$status" = 0 ]; then break; fi
  if [ "$status" != 3 ] || [ "$rate" = 1 ]; then fail "the detector's run failed"; fi
  rate=$((rate > 1 ? rate / 2 : 1))
done
frames=$(number frames <"$work/run")
if [ -n "$verbose" ]; then "$varve" record report "$disk/run.h5"; fi

echo
cat "$work/table"
echo
echo "Files: $files empty ones in one directory."
echo "Store: $where."
echo "Detector: $frames frames ($model) at $rate/s in one HDF5 file, none dropped."
echo "Plots and details: $page"
