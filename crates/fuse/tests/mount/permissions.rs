//! Permissions of callers: capabilities, user namespaces, id-mapped mounts, execution, privileges of programs.

use crate::fixture::{Beside, Volume, can_mount, shell};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Functions for the scripts. The users have no entry in the user database.
const USERS: &str = r#"
# as UID COMMAND...: without capabilities. setpriv itself has some until it runs a program.
as() { uid=$1; shift; setpriv --reuid="$uid" --regid="$uid" --clear-groups sh -c 'exec "$@"' sh "$@"; }
# with CAPABILITY COMMAND...: as user 47111 with one capability.
with() {
  cap=$1; shift
  setpriv --reuid=47111 --regid=47111 --clear-groups --inh-caps="+$cap" --ambient-caps="+$cap" "$@"
}
fails() { if "$@" 2>/dev/null; then echo "worked: $*" >&2; return 1; fi; }
equal() { if [ "$1" != "$2" ]; then echo "\"$1\" is not \"$2\": $3" >&2; return 1; fi; }
# container SCRIPT DIRECTORY: as root of a user namespace whose ids start at 100000 outside.
container() {
  /usr/bin/python3 - "$1" "$2" <<'PY'
import ctypes, os, sys
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.execvp("sh", ["sh", "-ec", sys.argv[1], "sh", sys.argv[2]])
os.close(ready[1])
assert os.read(ready[0], 1)
for which in "uid", "gid":
    with open(f"/proc/{child}/{which}_map", "w") as map:
        map.write("0 100000 65536")
os.write(go[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
PY
}
cd "$1"
"#;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can become other users");
    }
    root && can_mount()
}

fn run(script: &str, directory: &Path) -> String {
    shell(&format!("{USERS}\n{script}"), &[directory])
}

/// Runs a script on a mount that serves its volume itself, with and without passthrough, and on one beside a server.
fn on_all_mounts(script: &str) {
    if !is_root() {
        return;
    }
    for list in ["", "nopassthrough", "nopassthrough,direct_io"] {
        let volume = Volume::with_options(list);
        run(script, volume.path());
        volume.close();
    }
    let (volume, beside): (Volume, Beside) = Volume::mounted_twice("");
    run(script, &beside.join("."));
    beside.close();
    volume.close();
}

#[test]
fn capabilities_count_without_uid_0() {
    on_all_mounts(
        r#"
umask 077
mkdir secret; echo text >secret/f; mkdir -m 1777 sticky; echo >sticky/f
mkdir -m 700 -p secret/sub
fails as 47111 cat secret/f
fails as 47111 ls secret
equal "$(with dac_read_search cat secret/f)" text "a backup user reads"
equal "$(with dac_read_search ls secret/sub secret | grep -c f)" 1 "a backup user lists"
fails with dac_read_search sh -c 'echo more >>secret/f'
with dac_override sh -c 'echo more >>secret/f; mkdir secret/new; mv secret/new secret/newer; rmdir secret/newer'
equal "$(cat secret/f | tr '\n' ' ')" "text more " "written"
chmod 755 secret
fails as 47111 chown 47112:47112 secret/f
fails with fowner chown 47112:47112 secret/f
with chown chown 47112:47112 secret/f
equal "$(stat -c %u:%g secret/f)" 47112:47112 "owner"
fails as 47111 chmod 640 secret/f
fails with chown chmod 640 secret/f
with fowner chmod 640 secret/f
with fowner touch -d @5 secret/f
equal "$(stat -c %a:%Y secret/f)" 640:5 "mode and time"
fails as 47111 rm -f sticky/f
with fowner rm sticky/f
fails with chown mknod sticky/null c 1 3
with mknod mknod sticky/null c 1 3
echo >sticky/t; setfattr -n trusted.x -v y sticky/t
fails as 47111 getfattr -n trusted.x sticky/t
equal "$(with sys_admin getfattr --only-values -n trusted.x sticky/t)" y "trusted attributes"
"#,
    );
}

/// Rootless containers: chown and `tar xp` to ids that the namespace maps, and nothing beyond.
#[test]
fn namespace_root_changes_owners_to_mapped_ids() {
    on_all_mounts(
        r#"
mkdir -m 755 c; chown 100000:100000 c
echo host >host; chmod 666 host
tree=$(mktemp -d)
mkdir "$tree/d"; echo 1 >"$tree/d/f"; chown 5:7 "$tree/d/f"; chmod 2755 "$tree/d/f"; chown 8:9 "$tree/d"; chmod 750 "$tree/d"
tar cf c/a.tar -C "$tree" d
rm -r "$tree"
chmod 644 c/a.tar
container '
cd "$1/c"
echo >f; chown 5:7 f; chmod 2751 f; chown 1:2 f
tar xpf a.tar
rm -r d/f
tar xpf a.tar
for command in "chown 5:7 ../host" "chmod 600 ../host" "rm -f ../host" "mknod null c 1 3"; do
  if $command 2>/dev/null; then echo "worked: $command" >&2; exit 1; fi
done
' "$PWD"
equal "$(stat -c %u:%g:%a c/f)" 100001:100002:751 "a new owner clears set-id bits"
equal "$(stat -c %u:%g:%a c/d)" 100008:100009:750 "an unpacked directory"
equal "$(stat -c %u:%g:%a c/d/f)" 100005:100007:2755 "an unpacked file"
equal "$(stat -c %u:%g:%a host)" 0:0:666 "a file of the host"
"#,
    );
}

/// A mount of a user's own gives nobody rights by capabilities.
#[test]
fn capabilities_say_nothing_about_volumes_of_users() {
    if !is_root() {
        return;
    }
    let volume = Volume::owned_by(47112);
    run(
        "echo text >f; chmod 600 f; chown 47112 f
        fails with dac_read_search cat f
        fails with chown chown 47111 f
        fails with fowner chmod 666 f",
        volume.path(),
    );
    volume.close();
}

/// execve(2) needs permission to execute, and none to read.
#[test]
fn program_runs_without_read_permission() {
    on_all_mounts(
        r#"
cp /usr/bin/id plain; chmod 711 plain
cp /usr/bin/id privileged; chmod 4711 privileged
cp /usr/bin/id large; truncate -s 3M large; chmod 711 large
cp /usr/bin/id closed; chmod 700 closed
printf '#!/bin/sh\necho ran\n' >script; chmod 755 script
equal "$(as 47111 ./plain -u)" 47111 "mode 711"
equal "$(as 47111 ./large -u)" 47111 "mode 711, large"
equal "$(as 47111 ./privileged -u)" 0 "mode 4711"
equal "$(as 47111 ./script)" ran "a script"
fails as 47111 ./closed
fails as 47111 cat plain
# A program cannot claim to open for execution (__FMODE_EXEC).
fails as 47111 /usr/bin/python3 -c 'import os; os.open("plain", 0x20)'
"#,
    );
}

/// A writer of a program removes its capabilities and set-id bits, in the volume and in the kernel's caches.
#[test]
fn writer_takes_privileges_of_a_program() {
    on_all_mounts(
        r#"
program() { cp /usr/bin/id "$1"; [ -z "$2" ] || truncate -s "$2" "$1"; setcap cap_net_raw+ep "$1"; chmod 6777 "$1"; }
harmless() {
  equal "$(getcap "$1")" "" "capabilities after $2"
  equal "$(stat -c %a "$1")" 777 "mode after $2"
}
for size in 4000 90000; do
  echo small >f; truncate -s $size f; setcap cap_net_raw+ep f; chmod 6777 f
  as 47111 sh -c 'echo x >>f'; harmless f "an append to $size bytes"
  setcap cap_net_raw+ep f; chmod 6777 f
  as 47111 dd if=/dev/zero of=f bs=512 count=1 conv=notrunc status=none; harmless f "a write to $size bytes"
  setcap cap_net_raw+ep f; chmod 6777 f
  as 47111 dd if=/dev/zero of=f bs=4096 count=1 oflag=direct conv=notrunc status=none; harmless f "a direct write"
  setcap cap_net_raw+ep f; chmod 6777 f
  as 47111 truncate -s 300 f; harmless f "truncate"
  truncate -s $size f; setcap cap_net_raw+ep f; chmod 6777 f
  as 47111 fallocate -l 200 f; harmless f "fallocate"
  setcap cap_net_raw+ep f; chmod 6777 f
  chown 47112 f; harmless f "chown"; chown 0 f
  setcap cap_net_raw+ep f
  echo x >>f; equal "$(getcap f)" "" "capabilities after a write by root"
  rm f
done
# The kernel does not run a changed program with the rights of its owner.
cp /usr/bin/id p; chmod 4777 p
equal "$(as 47112 ./p -u)" 0 "before"
as 47111 dd if=/dev/zero of=p bs=1 seek=$(stat -c %s p) count=512 oflag=append conv=notrunc status=none
equal "$(as 47112 ./p -u)" 47112 "after"
# Privileges that a file gets while it is open go at the next write.
echo text >g; chmod 666 g; truncate -s 90000 g
mkfifo -m 666 go
as 47111 sh -c 'exec 5>>g; echo a >&5; read _ <go; echo b >&5' &
until grep -q a g; do sleep 0.05; done
setcap cap_net_raw+ep g; chmod 6777 g
echo >go; wait $!
harmless g "a write to a file that was open before"
# root keeps set-id bits.
cp /usr/bin/id r; chmod 6755 r; echo >>r; truncate -s 90000 r; : >r
equal "$(stat -c %a r)" 6755 "set-id bits after changes by root"
"#,
    );
}

/// A privileged writer who is not root: CAP_FSETID keeps set-id bits at a write, a truncate and a chmod.
#[test]
fn fsetid_keeps_set_id_bits() {
    on_all_mounts(
        r#"
fsetid() { with fsetid "$@"; }
for size in 4000 90000; do
  echo small >f; truncate -s $size f; chmod 6777 f
  fsetid sh -c 'echo x >>f'; equal "$(stat -c %a f)" 6777 "an append to $size bytes"
  fsetid dd if=/dev/zero of=f bs=512 count=1 conv=notrunc,fsync status=none
  equal "$(stat -c %a f)" 6777 "a write to $size bytes"
  fsetid truncate -s 300 f; equal "$(stat -c %a f)" 6777 "a truncate of $size bytes"
  as 47111 sh -c 'echo x >>f'; equal "$(stat -c %a f)" 777 "another user's append to $size bytes"
  rm f
done
echo text >g; chown 47111:5 g
as 47111 chmod 2755 g; equal "$(stat -c %a g)" 755 "a chmod outside of the group"
fsetid chmod 2755 g; equal "$(stat -c %a g)" 2755 "the same with the capability"
"#,
    );
}

/// mount_setattr(2) with MOUNT_ATTR_IDMAP.
#[test]
fn id_mapped_mount_shows_and_stores_mapped_owners() {
    if !is_root() {
        return;
    }
    let volume = Volume::new();
    fs::create_dir(volume.join("tree")).unwrap();
    fs::set_permissions(volume.join("tree"), Permissions::from_mode(0o755)).unwrap();
    let script = r#"
chown 5:6 tree
at=$(mktemp -d)
unshare --user sleep 60 &
child=$!
while [ "$(readlink /proc/$child/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.02; done
echo "0 100000 65536" >/proc/$child/uid_map
echo "0 100000 65536" >/proc/$child/gid_map
if ! /usr/bin/python3 - tree "$at" $child <<'PY'
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    done = libc.syscall(number, *args)
    if done < 0:
        print(os.strerror(ctypes.get_errno()), number); sys.exit(1)
    return done
source, target, child = sys.argv[1:]
tree = call(428, -100, source.encode(), 1 | 0x80000)
namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
attributes = struct.pack("QQQQ", 0x00100000, 0, 0, namespace)
call(442, tree, b"", 0x1000, attributes, ctypes.c_size_t(len(attributes)))
call(429, tree, b"", -100, target.encode(), 4)
PY
then kill $child; rmdir "$at"; exit 1; fi
kill $child
trap 'umount -l "$at"; rmdir "$at"' EXIT
cd "$at"
equal "$(stat -c %u:%g .)" 100005:100006 "the mapped owner"
fails as 5 touch f
as 100005 sh -ec 'echo text >f; chmod 640 f; mkdir d; mv f d/f; ln d/f g; echo more >>g; truncate -s 3 g; rm g'
as 100005 sh -ec 'truncate -s 100K d/f; echo more >>d/f; touch -d @7 d/f'
fails as 100006 cat d/f
equal "$(stat -c %u:%g:%a:%Y d/f)" 100005:100005:640:7 "shown"
chown 100008:100009 d/f
chmod 4755 d/f; echo >>d/f
equal "$(stat -c %a d/f)" 4755 "root keeps set-id bits"
chmod 4777 d/f; as 100005 truncate -s 5 d/f
equal "$(stat -c %a d/f)" 777 "a user does not"
cd "$1/tree"
equal "$(stat -c %u:%g:%s d/f)" 8:9:5 "stored"
"#;
    run(script, volume.path());
    volume.close();
}
