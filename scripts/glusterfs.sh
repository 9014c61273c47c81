#!/bin/bash
# A GlusterFS volume of two bricks on this machine, in a network namespace of its own, for tests: its daemons listen
# nowhere else. It is mounted twice, at DIRECTORY/mnt1 and DIRECTORY/mnt2, as by two hosts. Needs root; installs
# Debian's packages. With CACHES=on in the environment its clients keep their caches.
# usage: glusterfs.sh start|stop DIRECTORY
set -euo pipefail
verb=$1
directory=$2
name=varve-gluster-$(basename "$directory")
# GlusterFS refuses addresses of 127.0.0.0/8 for bricks.
address=10.99.0.1
socket=$directory/glusterd.socket

inside() { nsenter --net="/run/netns/$name" "$@"; }
manage() { inside gluster --mode=script --glusterd-sock="$socket" "$@"; }

start() {
  bash "$(dirname "$0")/packages.sh" glusterd:glusterfs-server mount.glusterfs:glusterfs-client ip:iproute2
  ip netns add "$name"
  inside ip link set lo up
  inside ip addr add "$address/32" dev lo
  mkdir -p "$directory"/{brick1,brick2,mnt1,mnt2,state} /run/gluster /var/log/glusterfs
  cat >"$directory/glusterd.vol" <<END
volume management
  type mgmt/glusterd
  option working-directory $directory/state
  option run-directory $directory/state/run
  option glusterd-sockfile $socket
  option transport-type socket
  option transport.socket.bind-address $address
  option transport.address-family inet
end-volume
END
  inside glusterd -f "$directory/glusterd.vol" -p "$directory/glusterd.pid" -l "$directory/glusterd.log"
  for _ in $(seq 100); do
    if manage pool list >/dev/null 2>&1; then break; fi
    sleep 0.2
  done
  manage volume create gv "$address:$directory/brick1" "$address:$directory/brick2" force
  options=
  if [ "${CACHES:-off}" != on ]; then
    # A server must see at once how long a file is that a client of another host has written or cut.
    for cache in stat-prefetch quick-read io-cache open-behind; do
      manage volume set gv "performance.$cache" off
    done
    options=,attribute-timeout=0,entry-timeout=0
  fi
  manage volume start gv
  for mount in mnt1 mnt2; do
    inside mount -t glusterfs -o "log-file=$directory/$mount.log$options" "$address:/gv" "$directory/$mount"
  done
}

stop() {
  for mount in mnt1 mnt2; do
    umount "$directory/$mount" 2>/dev/null || umount -l "$directory/$mount" 2>/dev/null || true
  done
  manage volume stop gv force >/dev/null 2>&1 || true
  for file in "$directory/glusterd.pid" "$directory"/state/run/vols/gv/*.pid; do
    if [ -s "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
  done
  ip netns del "$name" 2>/dev/null || true
  rm -rf --one-file-system "$directory"/{brick1,brick2,state}
}

case $verb in
  start) start ;;
  stop) stop ;;
  *) echo "usage: glusterfs.sh start|stop DIRECTORY" >&2; exit 1 ;;
esac
