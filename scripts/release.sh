#!/bin/bash
# Builds the program for installation with profile-guided optimisation. The first build has counters and runs everything
# that bench.sh measures, with small counts. The second build uses the counted profile: it places the code of requests
# together, apart from the code of errors (docs/internals/performance-findings.md, "Build, allocator, memory").
# Without the compiler's profiling tools the script builds the program once and says so.
# usage: release.sh TARGET PROGRAM
# TARGET: cargo's directory. PROGRAM: where the program is put.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
program=$2
counted=$target/counted
# The word may be two words, as in `cargo +nightly`, so bash splits it.
read -ra cargo <<<"${CARGO:-cargo}"

host=$(rustc -vV | sed -n 's/^host: //p')
merge=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if [ ! -x "$merge" ] && command -v rustup >/dev/null; then
  rustup component add llvm-tools >&2 || true
fi

# With --target the flags apply to the program alone, not to build scripts. The encoded form may contain spaces.
build() {
  CARGO_ENCODED_RUSTFLAGS=$1 "${cargo[@]}" build --locked --release --package varve-cli --target "$host" --target-dir "$2"
}

flags=
if [ -x "$merge" ]; then
  mkdir -p "$counted"
  build "-Cprofile-generate=$counted/raw" "$counted/build"
  counting=$counted/build/$host/release/varve
  if [ ! -e "$counted/counts" ] || [ "$counting" -nt "$counted/counts" ] || [ scripts/bench.sh -nt "$counted/counts" ]; then
    rm -rf "$counted/raw" "$counted"/*.profdata
    # Runs as another user are part of the profile too.
    mkdir -m 1777 "$counted/raw"
    chmod 1777 "$counted/raw"
    echo "== counting what a run of everything that is measured runs through"
    if ! BENCH_FILES=4000 BENCH_PREFILL=20000 BENCH_STREAM=128MiB BENCH_PAIRS=3 \
      bash scripts/bench.sh "$counting" "$counted/bench" "$counted/none" >"$counted/run.log" 2>&1; then
      tail -n 20 "$counted/run.log" >&2
      echo "the program with counters does not get through its run; all of it is in $counted/run.log" >&2
      exit 1
    fi
    "$merge" merge --sparse -o "$counted/counts.new" "$counted/raw"
    mv "$counted/counts.new" "$counted/counts"
    rm -rf "$counted/raw"
  fi
  # The name contains a hash of the content, because cargo does not notice a changed profile under the same name.
  counts=$counted/$(sha256sum "$counted/counts" | cut -c1-16).profdata
  cp "$counted/counts" "$counts"
  flags=-Cprofile-use=$counts
else
  echo "no llvm-profdata of this Rust (rustup component add llvm-tools): built without counts, and so slower" >&2
fi
build "$flags" "$target/installed"
install -D -m 755 "$target/installed/$host/release/varve" "$program"
