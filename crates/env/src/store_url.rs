//! The location of a volume: a `file://` URL or a path.

use std::path::{Path, PathBuf};

/// Recognised schemes whose error says that they are not supported yet.
const LATER_SCHEMES: [&str; 5] = ["s3", "gs", "az", "hdfs", "http"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    directory: PathBuf,
}

impl StoreUrl {
    /// Parses `text`: `file:///absolute/path` (with `%xx` escapes), or a path, relative ones to the current directory.
    pub fn parse(text: &str) -> Result<StoreUrl, StoreUrlError> {
        if text.is_empty() {
            return Err(StoreUrlError::Empty);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(StoreUrl { directory: PathBuf::from(text) });
        };
        let known = LATER_SCHEMES.iter().any(|later| scheme.eq_ignore_ascii_case(later));
        if !scheme.eq_ignore_ascii_case("file") {
            let (scheme, text) = (scheme.to_owned(), text.to_owned());
            return Err(if known { StoreUrlError::Later { scheme } } else { StoreUrlError::Scheme { scheme, text } });
        }
        let path = rest.strip_prefix("localhost").unwrap_or(rest);
        if !path.starts_with('/') {
            return Err(StoreUrlError::Host { text: text.to_owned() });
        }
        Ok(StoreUrl { directory: PathBuf::from(unescape(path).ok_or_else(|| StoreUrlError::Escape(text.to_owned()))?) })
    }

    /// The directory of the volume.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.directory.display().fmt(f)
    }
}

impl std::str::FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        StoreUrl::parse(text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    #[error("the store is missing: give a directory or a file:// URL")]
    Empty,
    #[error("{scheme}:// stores are not supported yet: give a directory or a file:// URL")]
    Later { scheme: String },
    #[error("{text:?} has the unknown scheme {scheme:?}: give a directory or a file:// URL")]
    Scheme { scheme: String, text: String },
    #[error("{text:?} names a host, or no path: write file:///path, with three slashes")]
    Host { text: String },
    #[error("{0:?} has a malformed % escape")]
    Escape(String),
}

fn unescape(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
