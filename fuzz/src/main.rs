//! Runs libFuzzer on the target that `VARVE_FUZZ_TARGET` names; `make fuzz` builds and runs it.

#![no_main]

use std::sync::LazyLock;
use varve_fuzz::targets::{FuzzTarget, find};

static TARGET: LazyLock<&FuzzTarget> = LazyLock::new(|| {
    let name = std::env::var("VARVE_FUZZ_TARGET").expect("VARVE_FUZZ_TARGET names a target");
    find(&name).unwrap_or_else(|| panic!("there is no target {name}"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET.run_bounded(bytes));
