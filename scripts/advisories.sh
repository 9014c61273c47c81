#!/bin/bash
# Looks for advisories against the crates of Cargo.lock: advisories.sh CARGO [ARGUMENTS OF cargo deny]. An advisory is a failure. A
# database that cannot be fetched is none, for the machine may have no network: one that was fetched earlier is used, or it is said
# that nothing was checked.
set -euo pipefail

cargo=${1:-cargo}
shift || true
said=$(mktemp)
trap 'rm -f "$said"' EXIT

check() {
  # The network may hang rather than refuse.
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
