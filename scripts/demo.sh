#!/bin/bash
# Formats a volume, mounts it, and compares it with the plain directory beneath it: create, stat and delete by directory,
# mount and library. Then kills one of two servers of the volume while a workload goes on, and records frames of a simulated
# detector. It ends with a table and the name of the page with the plots. As root it works on a new ext4 in an image, else in DIRECTORY. It removes everything but the page.
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
survivor=
workload=

is_mounted() { grep -qs " $1 " /proc/self/mountinfo; }
# Ends a process by SIGTERM, if there is one.
end() {
  if [ -n "$1" ]; then
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
  fi
}
end_servers() {
  end "$server"
  end "$survivor"
  server=
  survivor=
}
cleanup() {
  local status=$?
  trap - EXIT
  # A second Ctrl-C must not leave a mount behind.
  trap '' INT TERM HUP
  end "$workload"
  if is_mounted "$work/mnt"; then
    "$varve" umount --force --wait 10s "$work/mnt" >&2 || umount -l "$work/mnt" 2>/dev/null || fusermount3 -uz "$work/mnt" || true
  fi
  end_servers
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
end_servers

# Two servers divide the shards. Directories are spread over all of them, so the workload needs both servers. The first one is
# killed in the middle; the other one has its shards after twice the lease, which is long enough for a busy machine.
echo "demo: killing one of two servers while a workload goes on" >&2
joined() { exec setsid "$varve" serve "$disk/store" --join --lease 3s --unix-dir "$work/sockets"; }
# Waits until so many servers have so many shards each.
await_shares() {
  for _ in $(seq 300); do
    if [ "$("$varve" cluster status "$disk/store" 2>/dev/null | awk -v share="$2" '$4 == "active" && $5 == share' | wc -l)" = "$1" ]; then return; fi
    sleep 0.1
  done
  fail "the servers have not divided the shards"
}
# Makes directories with a file each, and checks each file. Every line of its output is the time of one that was made. It ends
# with an error at the first call that fails, and in good order when the file `stop` is there.
make_files() {
  local at
  for ((at = 0; ; at++)); do
    if [ -e "$work/stop" ]; then return; fi
    mkdir "$work/mnt/d$at" && echo "content $at" >"$work/mnt/d$at/file" && mv "$work/mnt/d$at/file" "$work/mnt/d$at/renamed" || return 1
    echo "$EPOCHREALTIME"
  done
}
# Waits until the workload has made so many more directories.
await_progress() {
  local before
  before=$(wc -l <"$work/made")
  for _ in $(seq 600); do
    kill -0 "$workload" 2>/dev/null || fail "the workload failed"
    if [ "$(wc -l <"$work/made")" -ge $((before + $1)) ]; then return; fi
    sleep 0.1
  done
  fail "the workload stands still"
}
joined >"$work/server1.log" 2>&1 &
server=$!
joined >"$work/server2.log" 2>&1 &
survivor=$!
await_shares 2 32
quietly mount "$disk/store" "$work/mnt" -o noembedded --log-file "$work/mount.log"
make_files >"$work/made" 2>"$work/workload.log" &
workload=$!
await_progress 50
# Bash reports the end of a job by a signal, unless it has forgotten the job.
disown "$server"
kill -KILL "$server"
server=
await_shares 1 64
await_progress 50
touch "$work/stop"
wait "$workload" || fail "the workload failed"
workload=
made=$(wc -l <"$work/made")
for ((at = 0; at < made; at++)); do
  if [ "$(cat "$work/mnt/d$at/renamed")" != "content $at" ]; then fail "the file of directory d$at is lost"; fi
done
waited=$(awk 'NR > 1 && $1 - last > most { most = $1 - last } { last = $1 } END { printf "%.1f", most }' "$work/made")
quietly umount "$work/mnt"
end_servers

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
echo "Servers: 2 of one volume, one ended by kill -9 while files were made: $made files,"
echo "  none failed, all are there, and the longest wait was $waited s."
echo "Detector: $frames frames ($model) at $rate/s in one HDF5 file, none dropped."
echo "Plots and details: $page"
