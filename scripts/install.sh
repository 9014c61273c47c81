#!/bin/bash
# Installs the program PROGRAM with its man pages, completions, systemd units, mount helper and kernel settings:
#   install.sh PROGRAM PREFIX [DESTDIR]
# DESTDIR is the root of a package; the installed files do not name it. The program that writes man pages and
# completions is PROGRAM itself.
set -euo pipefail
program=$(realpath "$1") prefix=${2%/} root=${3:-}
source=$(cd "$(dirname "$0")/.." && pwd)
[[ $prefix == /* ]] || { echo "install: PREFIX must be an absolute path, and is '$prefix'" >&2; exit 2; }

put() { # put MODE FILE DIRECTORY
  install -D -m "$1" "$2" "$root$3/$(basename "$2")"
  echo "$root$3/$(basename "$2")"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Debug information is a file of its own, which `make dist` keeps beside the packages.
cp "$program" "$work/varve"
# A package is stripped already, and a host without a toolchain has no strip.
if command -v strip >/dev/null; then strip --strip-debug "$work/varve"; fi
put 755 "$work/varve" "$prefix/bin"

"$program" man "$work/man" >/dev/null
for page in "$work"/man/*; do
  gzip -9n "$page"
  put 644 "$page.gz" "$prefix/share/man/man${page##*.}"
done

"$program" completions bash >"$work/varve"
put 644 "$work/varve" "$prefix/share/bash-completion/completions"
"$program" completions zsh >"$work/_varve"
put 644 "$work/_varve" "$prefix/share/zsh/site-functions"
"$program" completions fish >"$work/varve.fish"
put 644 "$work/varve.fish" "$prefix/share/fish/vendor_completions.d"

for unit in "$source"/contrib/systemd/*.service; do
  sed "s|@BINDIR@|$prefix/bin|g" "$unit" >"$work/$(basename "$unit")"
  put 644 "$work/$(basename "$unit")" "$prefix/lib/systemd/system"
done
put 644 "$source/contrib/modprobe.d/varve.conf" "$prefix/lib/modprobe.d"
put 644 "$source/contrib/logrotate/varve" "$prefix/share/varve/logrotate"
put 644 "$source/contrib/prometheus/varve.rules.yml" "$prefix/share/varve/prometheus"
put 644 "$source/contrib/grafana/varve.json" "$prefix/share/varve/grafana"
put 644 "$source/LICENSE" "$prefix/share/doc/varve"
put 644 "$source/CHANGELOG.md" "$prefix/share/doc/varve"

# mount(8) looks for helpers in /sbin alone. On systems where /sbin is a link to /usr/sbin, packages use the latter.
helpers=/sbin
[[ $prefix != /usr ]] || helpers=/usr/sbin
if [[ -n $root || -w $helpers ]]; then
  mkdir -p "$root$helpers"
  ln -sfn "$prefix/bin/varve" "$root$helpers/mount.fuse.varve"
  echo "$root$helpers/mount.fuse.varve"
else
  echo "install: $helpers cannot be written, so mount(8) and fstab(5) do not find varve; varve mount works without that"
fi
