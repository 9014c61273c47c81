#!/bin/bash
# Measures every performance bar in about ten minutes. As root it measures on a fresh XFS, or ext4 with a journal, in an
# image on a loop device, because a shared or fragmented file system would distort the figures. Other users measure in a
# local directory, and the script says so. It writes a report for each run and one page of all reports, and compares the
# ratios with the recorded ones. The exit code is 3 if a ratio fell by more than a tenth.
# usage: bench.sh VARVE DIRECTORY RECORDED
# Environment: BENCH_FILES, files of a pass; BENCH_PREFILL, files in the directory before the measurement; BENCH_STREAM,
# bytes of a stream; BENCH_PAIRS, turns of large files and of the prefilled directory.
set -euo pipefail
varve=$1
out=$2
recorded=$3
files=${BENCH_FILES:-20000}
prefill=${BENCH_PREFILL:-5000000}
stream=${BENCH_STREAM:-1GiB}
# Turns of measurements whose ratio must be accurate to a few hundredths.
pairs=${BENCH_PAIRS:-15}

work=$(mktemp -d "${TMPDIR:-/tmp}/varve-bench-XXXXXX")
chmod 755 "$work"
disk=$work/disk
server=
loop=
# A host that takes back the free memory of this virtual machine would slow it down. This turns that off meanwhile.
reporting=/sys/module/page_reporting/parameters/page_reporting_order
order=
mounted() { grep -qs " $1 " /proc/self/mountinfo; }
end_server() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
  fi
}
cleanup() {
  local status=$?
  trap - EXIT INT TERM
  for at in "$work/mnt" "$disk/user/mnt"; do
    if mounted "$at"; then "$varve" umount "$at" || umount -l "$at" 2>/dev/null || fusermount3 -uz "$at" || true; fi
  done
  end_server
  if mounted "$disk"; then umount "$disk" || umount -l "$disk" || true; fi
  if [ -n "$loop" ]; then losetup --detach "$loop" || true; fi
  if [ -n "$order" ]; then echo "$order" >"$reporting"; fi
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fresh_disk() {
  truncate -s 24G "$work/disk.img"
  if command -v mkfs.xfs >/dev/null; then mkfs.xfs -q "$work/disk.img"; else mkfs.ext4 -q -F "$work/disk.img"; fi
  # Direct I/O avoids the page cache of the file system that holds the image, so that reads come from the disk.
  loop=$(losetup --find --show --direct-io=on "$work/disk.img" || losetup --find --show "$work/disk.img") || return 1
  mount "$loop" "$disk"
}
serve() {
  "$varve" serve "$disk/store" --unix-dir "$work/sockets" >"$work/server.log" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    if [ -e "$disk/store/servers/current.toml" ]; then return; fi
    sleep 0.1
  done
  cat "$work/server.log" >&2
  exit 1
}
mount_volume() { "$varve" mount "$disk/store" "$work/mnt" --log-file "$work/mount.log" "$@"; }
# The clock ticks that the processes have used.
ticks() { for pid in "$@"; do cut -d' ' -f14,15 "/proc/$pid/stat"; done | awk '{ sum += $1 + $2 } END { print sum }'; }
run() {
  echo "== $1"
  "$varve" bench "${@:2}" --save "$out/$1.json"
}

if [ -w "$reporting" ]; then
  order=$(cat "$reporting")
  echo 11 >"$reporting"
fi
mkdir -p "$out" "$work/mnt" "$disk"
rm -f "$out"/*.json "$out"/*.html "$out"/*.txt
if [ "$(id -u)" != 0 ] || ! fresh_disk; then
  echo "no loop device here: measuring in ${TMPDIR:-/tmp} itself" >&2
fi
mkdir "$disk/plain"
"$varve" format "$disk/store" >/dev/null

serve
mount_volume
run served mdtest --files "$files" --clients 1,2,8 --repeat 3 --ceilings \
  --via "path:$disk/plain" --via "mount:$work/mnt" --via "library:$disk/store"
run directories mdtest --directories --files $((files / 5)) --clients 1,8 --repeat 3 \
  --via "path:$disk/plain" --via "library:$disk/store"
for size in 1KiB 4KiB 32KiB; do
  run "small-$size" mdtest --write "$size" --files $((files / 4)) --clients 1,8 --repeat 2 \
    --via "path:$disk/plain" --via "mount:$work/mnt"
done
echo "== idle, ten seconds: server and mount with $("$varve" --json status "$disk/store" | grep -o '"shards":[0-9]*' | head -1 | cut -d: -f2) shards"
pids="$server $("$varve" --json stats "$work/mnt" | grep -o '"pid":[0-9]*' | cut -d: -f2)"
# The server still merges recent writes into tables. It is idle only after that.
settled=0
for second in $(seq 120); do
  # shellcheck disable=SC2086
  before=$(ticks $pids)
  sleep 1
  # shellcheck disable=SC2086
  if [ $(($(ticks $pids) - before)) -gt 2 ]; then settled=0; continue; fi
  settled=$((settled + 1))
  if [ "$settled" = 3 ]; then echo "(after $second seconds in which tables were merged)"; break; fi
done
# shellcheck disable=SC2086
before=$(ticks $pids)
sleep 10
# shellcheck disable=SC2086
awk -v used=$(($(ticks $pids) - before)) -v hz="$(getconf CLK_TCK)" \
  'BEGIN { printf "%.2f%% of a processor\n", 100 * used / hz / 10 }' | tee "$out/idle.txt"
"$varve" umount "$work/mnt"
if [ "$prefill" != 0 ]; then
  run prefilled mdtest --files "$files" --clients 8 --repeat "$pairs" --prefill "$prefill" --via "library:$disk/store"
  grep VmHWM "/proc/$server/status" | awk -v files="$prefill" \
    '{ printf "the server peaked at %d MiB with %d files\n", $2 / 1024, files }' | tee "$out/memory.txt"
fi
end_server

mount_volume
run embedded mdtest --files "$files" --clients 1,2,8 --repeat 3 --ceilings --via "mount:$work/mnt"
run stream stream --bytes "$stream" --clients 1,2 --repeat "$pairs" --via "path:$disk/plain" --via "mount:$work/mnt"
"$varve" umount "$work/mnt"

# A user's own mount. Root runs it as user 2, with a copy of the program that this user can reach. If only root may open
# /dev/fuse, the user gets another device node, in a mount namespace that ends with this script.
as=
if [ "$(id -u)" = 0 ]; then as="setpriv --reuid 2 --regid 2 --clear-groups env HOME=$disk/user"; fi
mkdir -p "$disk/user/mnt" "$disk/user/plain"
install -m 755 "$varve" "$work/varve"
if [ -n "$as" ]; then chown -R 2:2 "$disk/user"; fi
chmod 755 "$disk"
may_mount() { $as test -r "$1" -a -w "$1" -a -x "$work/varve"; }
stream_user() (
  set -euo pipefail
  if [ "$1" != /dev/fuse ]; then mount --bind "$1" /dev/fuse; fi
  $as "$work/varve" format "$disk/user/store" >/dev/null
  for how in stream-user stream-user-direct_io; do
    options="rw"
    if [ "$how" = stream-user-direct_io ]; then options="direct_io"; fi
    $as "$work/varve" mount "$disk/user/store" "$disk/user/mnt" -o "$options" --unix-dir "$disk/user/sockets" --log-file "$disk/user/log"
    trap '$as "$work/varve" umount "$disk/user/mnt"' EXIT
    echo "== $how"
    $as "$work/varve" bench stream --bytes "$stream" --clients 1 --repeat "$pairs" \
      --via "path:$disk/user/plain" --via "mount:$disk/user/mnt" --save "$disk/user/$how.json"
    trap - EXIT
    $as "$work/varve" umount "$disk/user/mnt"
  done
)
if may_mount /dev/fuse; then
  stream_user /dev/fuse
elif [ -n "$as" ] && mknod -m 666 "$work/fuse" c 10 229 2>/dev/null && may_mount "$work/fuse"; then
  export -f stream_user
  as=$as work=$work disk=$disk stream=$stream pairs=$pairs unshare --mount bash -c 'stream_user "$0"' "$work/fuse"
else
  echo "no user's mount: user 2 may not open /dev/fuse, or not run $work/varve" >&2
fi
for report in "$disk"/user/stream-user*.json; do if [ -e "$report" ]; then cp "$report" "$out/"; fi; done
echo "== profile"
"$varve" bench profile "$disk" | tee "$out/profile.txt"

echo
status=0
if [ -e "$recorded" ]; then
  "$varve" bench compare --recorded "$recorded" --page "$out/page.html" --record "$out/ratios.json.new" "$out"/*.json || status=$?
else
  "$varve" bench compare --page "$out/page.html" --record "$out/ratios.json.new" "$out"/*.json || status=$?
fi
echo
echo "The page with the plots: $out/page.html; the recorded ratios with these in their place: $out/ratios.json.new"
exit "$status"
