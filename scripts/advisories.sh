#!/bin/bash
# Checks the crates of Cargo.lock against the advisory database, and fails if there is an advisory. If the database cannot
# be fetched, because the machine may have no network, the script uses the copy of an earlier run, or reports that it
# checked nothing.
# usage: advisories.sh CARGO [ARGUMENTS OF cargo deny]
set -euo pipefail

cargo=${1:-cargo}
shift || true
said=$(mktemp)
trap 'rm -f "$said"' EXIT

check() {
  # A network can hang instead of refusing a connection.
  timeout --kill-after=10s "${ADVISORIES_LIMIT:-5m}" "$cargo" deny --log-level error "$@" >"$said" 2>&1
}
found() { grep -qE '^error\[(vulnerability|unmaintained|unsound|yanked|notice|unsupported)' "$said"; }
unfetched() { [ "$1" = 124 ] || [ "$1" = 137 ] || grep -qE 'failed to (fetch|clone)|unable to (fetch|clone)' "$said"; }

check "$@" check advisories && exit 0 || code=$?
cat "$said" >&2
if found || ! unfetched "$code"; then exit "$code"; fi

check --offline "$@" check advisories && code=0 || code=$?
if [ "$code" = 0 ]; then
  echo "advisories: the database could not be fetched; the one that was fetched earlier names no crate of this workspace" >&2
elif found; then
  cat "$said" >&2
  exit "$code"
else
  echo "advisories: not checked, for the database could not be fetched; run \`make check\` again with network" >&2
fi
