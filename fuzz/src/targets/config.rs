//! The configuration file.

use super::volume::in_file;
use std::ffi::OsString;

pub fn reads(bytes: &[u8]) -> bool {
    in_file("config.toml", bytes, |path| {
        let arguments = ["varve".into(), "--config".into(), OsString::from(path), "status".into(), "/nowhere".into()];
        match varve_cli::with_file(varve_cli::definition(), &arguments) {
            // Values from the file become defaults of the definition and are checked with the command line.
            Ok(command) => command.try_get_matches_from(arguments).is_ok(),
            Err(problem) => {
                assert!(problem.to_string().contains("config.toml"), "{problem} does not say which file");
                false
            }
        }
    })
}
