#!/bin/bash
# Two users and one volume: its owner serves and mounts it without root, the other user is refused.
# After a repair by root, all files of the volume still belong to its owner.
# usage (as root, in a mount namespace of its own): users.sh VARVE DIRECTORY
set -euo pipefail
varve=$1
here=$2

# A separate device that everybody may open, because the machine's own may be closed to all but root.
mknod "$here/fuse" c 10 229
chmod 666 "$here/fuse"
mount --bind "$here/fuse" /dev/fuse

owner() {
  setpriv --reuid=2 --regid=2 --clear-groups \
    env -i PATH=/usr/bin:/bin HOME=/nonexistent XDG_RUNTIME_DIR="$here/run" "$@"
}
stranger() {
  setpriv --reuid=1 --regid=1 --clear-groups \
    env -i PATH=/usr/bin:/bin HOME=/nonexistent XDG_RUNTIME_DIR="$here/other" "$@"
}
fails() {
  if "$@"; then
    echo "should have failed: $*" >&2
    exit 1
  fi
}
trap 'umount -l "$here/mnt" 2>/dev/null || true' EXIT

install -d -o 2 -g 2 "$here/store" "$here/mnt"
install -d -m 700 -o 2 -g 2 "$here/run"
install -d -m 700 -o 1 -g 1 "$here/other" "$here/other/mnt"
cd /

owner "$varve" format "$here/store" --shards 4
owner "$varve" mount "$here/store" "$here/mnt" --log-file "$here/run/mount.log" || {
  cat "$here/run/mount.log" >&2
  exit 1
}
owner sh -c "echo mine > $here/mnt/file && chmod 600 $here/mnt/file && cat $here/mnt/file"
[ "$(owner stat -c %u:%g "$here/mnt/file")" = 2:2 ]
# Only the owner can access the owner's mount and the volume's key.
fails stranger cat "$here/mnt/file"
fails stranger "$varve" status "$here/store"
fails stranger "$varve" mount "$here/store" "$here/other/mnt" --log-file "$here/other/mount.log"
fails stranger ls "$here/store/data"
# A configuration in another user's home is ignored.
install -d -m 700 "$here/closed" "$here/closed/.config" "$here/closed/.config/varve"
echo nonsense >"$here/closed/.config/varve/config.toml"
stranger env HOME="$here/closed" "$varve" --version
owner "$varve" umount "$here/mnt"
fails stranger "$varve" serve "$here/store"
owner "$varve" mount "$here/store" "$here/mnt" --log-file "$here/run/mount.log"
[ "$(owner cat "$here/mnt/file")" = mine ]
owner "$varve" umount "$here/mnt"

# One table is damaged, one shard is gone: root makes tables, logs and directories.
table=$(find "$here/store/shards" -name '*.sst' -printf '%s %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2)
printf 'damage' | dd of="$table" bs=1 seek=40 conv=notrunc status=none
victim=$(find "$here/store/shards" -mindepth 1 -maxdepth 1 -type d | grep -vF "${table%/*/*}" | sort | head -n 1)
rm -r "$victim"
# A file of root that is also linked into the volume stays root's.
echo root > "$here/roots"
ln "$here/roots" "$here/store/shards/linked"
repaired=0
"$varve" fsck --repair "$here/store" || repaired=$?
[ "$repaired" = 1 ]
[ "$(stat -c %u "$here/roots")" = 0 ]
rm "$here/store/shards/linked"
others=$(find "$here/store" ! \( -user 2 -group 2 \))
[ -z "$others" ] || {
  echo "not the owner's: $others" >&2
  exit 1
}
owner "$varve" fsck "$here/store"
owner "$varve" mount "$here/store" "$here/mnt" --log-file "$here/run/mount.log"
owner sh -c "echo again > $here/mnt/again && cat $here/mnt/again"
owner "$varve" umount "$here/mnt"
echo "all is well"
