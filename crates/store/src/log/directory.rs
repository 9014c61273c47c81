//! The files of a log's directory, by epoch.
//!
//! ```text
//! <epoch>.<number>.log   part of the epoch's stream: 16 and 8 hexadecimal digits
//! <epoch>.begun          the epoch has a file, until it is sealed or a later one has begun; holds the synced position
//! <epoch>.fence          the epoch is being ended: its owner must report nothing as synced any more
//! <epoch>.seal           the epoch has ended, at the length written in it
//! ```

use super::failure::LogError;
use super::format::{FILE_HEADER_BYTES, FileHeader, LogFormatError, Seal, VERSION};
use std::collections::BTreeMap;
use std::io::{self, Read};
use varve_env::store_path::StorePath;

pub fn file_path(directory: &StorePath, epoch: u64, number: u32) -> StorePath {
    directory.join(format!("{epoch:016x}.{number:08x}.log"))
}

pub fn begun_path(directory: &StorePath, epoch: u64) -> StorePath {
    directory.join(format!("{epoch:016x}.begun"))
}

pub fn seal_path(directory: &StorePath, epoch: u64) -> StorePath {
    directory.join(format!("{epoch:016x}.seal"))
}

pub fn fence_path(directory: &StorePath, epoch: u64) -> StorePath {
    directory.join(format!("{epoch:016x}.fence"))
}

/// The files of one epoch in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochFiles {
    /// By number.
    pub files: BTreeMap<u32, StorePath>,
    pub begun: bool,
    pub sealed: bool,
    pub fenced: bool,
}

/// Lists the directory by epoch. Ignores foreign files.
pub fn list(directory: &StorePath) -> Result<BTreeMap<u64, EpochFiles>, LogError> {
    let failed = || LogError::io("list", directory);
    let mut epochs: BTreeMap<u64, EpochFiles> = BTreeMap::new();
    for entry in directory.read_dir().map_err(failed())? {
        let path = entry.into_path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let mut parts = name.split('.');
        let Some(epoch) = parts.next().and_then(|digits| hexadecimal(digits, 16)) else { continue };
        match (parts.next(), parts.next(), parts.next()) {
            (Some("begun"), None, None) => epochs.entry(epoch).or_default().begun = true,
            (Some("seal"), None, None) => epochs.entry(epoch).or_default().sealed = true,
            (Some("fence"), None, None) => epochs.entry(epoch).or_default().fenced = true,
            (Some(number), Some("log"), None) => {
                if let Some(number) = hexadecimal(number, 8) {
                    epochs.entry(epoch).or_default().files.insert(number as u32, path.clone());
                }
            }
            _ => {}
        }
    }
    Ok(epochs)
}

/// The path of the first file of a log.
pub fn first_file(directory: &StorePath) -> StorePath {
    file_path(directory, 1, 0)
}

/// Whether the directory has files of any epoch.
pub fn is_begun(directory: &StorePath) -> Result<bool, LogError> {
    Ok(!list(directory)?.is_empty())
}

/// The unsealed epoch whose log files are gone although its mark shows that it had some. Its first file was durable
/// before the mark was made, and its last one stays until a later epoch has begun, so the files were removed from
/// outside.
pub fn gone(epochs: &BTreeMap<u64, EpochFiles>) -> Option<u64> {
    let (epoch, files) = epochs.iter().next_back()?;
    (files.begun && !files.sealed && files.files.is_empty()).then_some(*epoch)
}

fn hexadecimal(digits: &str, length: usize) -> Option<u64> {
    let well_formed = digits.len() == length && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    well_formed.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// The header of a log file; `Ok(Err)` describes the damage in its bytes.
pub fn read_file_header(path: &StorePath) -> Result<Result<FileHeader, LogFormatError>, LogError> {
    let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
    let file = path.open().map_err(LogError::io("open", path))?;
    file.take(FILE_HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(LogError::io("read", path))?;
    match FileHeader::decode(&bytes) {
        Err(LogFormatError::Version(found)) => {
            Err(LogError::Newer { path: path.clone().into(), found, known: VERSION })
        }
        decoded => Ok(decoded),
    }
}

/// The seal of an epoch, if it is sealed. Seals are published atomically, so a damaged one is an error.
pub fn read_seal(directory: &StorePath, epoch: u64) -> Result<Option<Seal>, LogError> {
    let path = seal_path(directory, epoch);
    let bytes = match path.read() {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LogError::io("read", &path)(error)),
    };
    let damaged =
        |reason: LogFormatError| LogError::Damaged { path: path.clone().into(), offset: 0, reason: reason.to_string() };
    match Seal::decode(&bytes) {
        Ok(seal) if seal.epoch == epoch => Ok(Some(seal)),
        Ok(_) => Err(damaged(LogFormatError::Place)),
        Err(LogFormatError::Version(found)) => Err(LogError::Newer { path: path.into(), found, known: VERSION }),
        Err(reason) => Err(damaged(reason)),
    }
}
