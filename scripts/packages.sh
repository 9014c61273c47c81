#!/bin/bash
# Installs missing Debian packages. Each argument is PROOF:PACKAGE, where PROOF is a command or an absolute path that the
# package provides. Without root and sudo the script prints the command for root and fails.
# usage: packages.sh PROOF:PACKAGE...
set -euo pipefail
# The directories of administrators' tools are not on every user's PATH.
PATH="$PATH:/usr/sbin:/sbin"
missing=()
for each in "$@"; do
  proof=${each%:*}
  case $proof in
    /*) [ -e "$proof" ] && continue ;;
    *) command -v "$proof" >/dev/null && continue ;;
  esac
  missing+=("${each##*:}")
done
if [ "${#missing[@]}" = 0 ]; then exit 0; fi
if [ "$(id -u)" = 0 ]; then
  as=()
elif command -v sudo >/dev/null; then
  as=(sudo)
else
  echo "missing packages: ask root to run: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "installing the Debian packages ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as[@]}" apt-get update -qq
"${as[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
