#!/bin/bash
# Makes the packages of the program PROGRAM in the directory OUT: a .deb, a tarball, the debug information, and the
# Containerfile of an image with the .deb:
#   dist.sh PROGRAM OUT
set -euo pipefail
program=$(realpath "$1") source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
version=$("$program" --version | cut -d ' ' -f 2)
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
# dpkg-deb's name for it. Tests of large programs without optimisation ask for none.
compression=${DIST_COMPRESSION:-xz}

# The shared libraries that the program names, as Debian packages. The C library's version is that of its newest symbol.
glibc=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1 | cut -d _ -f 2)
depends="libc6 (>= $glibc)"
for library in $(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }'); do
  case $library in
    libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|ld-linux*) ;;
    libgcc_s.so.*) depends+=", libgcc-s1" ;;
    *) echo "dist: no Debian package is known for $library" >&2; exit 1 ;;
  esac
done

package=$work/package
bash "$source/scripts/install.sh" "$program" /usr "$package"
mkdir -p "$package/DEBIAN"
cat >"$package/DEBIAN/control" <<CONTROL
Package: varve
Version: $version
Architecture: $architecture
Maintainer: The Varve project <varve@localhost>
Section: admin
Priority: optional
Depends: $depends, fuse3
Installed-Size: $(du -sk --exclude=DEBIAN "$package" | cut -f 1)
Description: parallel file system layered on existing storage
 Varve turns a directory of any POSIX file system into a volume with fast
 metadata and full POSIX semantics. It has a server, a FUSE mount, and a
 detector service that writes HDF5 files.
CONTROL
# Running servers and mounts go on with the program that they were started with; the administrator restarts them.
cat >"$package/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
POSTINST
cp "$package/DEBIAN/postinst" "$package/DEBIAN/postrm"
chmod 755 "$package/DEBIAN/postinst" "$package/DEBIAN/postrm"
dpkg-deb --root-owner-group -Z"$compression" --build "$package" "$out/varve_${version}_$architecture.deb" >/dev/null

# The tarball is for any prefix: its own install.sh takes one.
tree=$work/varve-$version
mkdir -p "$tree/scripts" "$tree/bin"
cp "$program" "$tree/bin/varve"
strip --strip-debug "$tree/bin/varve"
cp -r "$source/contrib" "$source/LICENSE" "$source/CHANGELOG.md" "$source/README.md" "$tree/"
cp "$source/scripts/install.sh" "$tree/scripts/"
cat >"$tree/INSTALL" <<'INSTALL'
As root: bash scripts/install.sh bin/varve /usr/local
As a user: bash scripts/install.sh bin/varve ~/.local
INSTALL
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -czf "$out/varve-$version-$architecture.tar.gz" "varve-$version"

objcopy --only-keep-debug "$program" "$out/varve-$version-$architecture.debug"
cp "$source/contrib/Containerfile" "$out/Containerfile"
ls -l "$out"
