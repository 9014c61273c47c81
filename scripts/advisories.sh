#!/bin/bash
# Looks for advisories against the crates of Cargo.lock: advisories.sh CARGO. Fails where one is found; a database that cannot be
# fetched is no failure, for the machine may have no network, but it is said.
set -euo pipefail

cargo=${1:-cargo}
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# The network may hang rather than refuse.
if timeout --kill-after=10s "${ADVISORIES_LIMIT:-5m}" "$cargo" deny --log-level error check advisories 2>"$said"; then
  exit 0
else
  code=$?
fi
cat "$said" >&2
# cargo-deny says in words that it has no database, and gives every failure one exit code.
if [ "$code" = 124 ] || [ "$code" = 137 ] \
  || grep -qE 'failed to (fetch|clone|acquire|load|open) .*(advisory|database)|unable to (fetch|clone).*(advisory|database)|failed to fetch' "$said"; then
  if ! grep -qE '^error\[(vulnerability|unmaintained|unsound|yanked|notice)' "$said"; then
    echo "advisories: not checked, for the advisory database could not be fetched; run \`make check\` again with network" >&2
    exit 0
  fi
fi
exit "$code"
