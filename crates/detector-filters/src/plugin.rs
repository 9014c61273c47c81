//! A user's own filter from a shared library with HDF5's filter plug-in interface (`H5PLget_plugin_type`,
//! `H5PLget_plugin_info`). The filter runs in the service's own threads and without libhdf5. Two of its callbacks,
//! `can_apply` and `set_local`, are never called because they take libhdf5's handles. The user decides instead whether
//! the filter applies, and gives its values for the dataset.

use libloading::{Library, Symbol};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::PathBuf;

/// The plug-in settings of a dataset spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a filter: an object with `library` and others")]
pub struct PluginChoice {
    /// The shared library.
    pub library: PathBuf,
    /// The filter's values, as the library would have them after its `set_local`.
    #[serde(default)]
    pub values: Vec<u32>,
    /// Whether the filter must not run in several threads at a time. Within libhdf5 it never does.
    #[serde(default)]
    pub exclusive: bool,
    /// Registration as the library reports it; absent before the library is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<FilterRegistration>,
}

/// Filter identifier and name, by which readers find the filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRegistration {
    pub id: u16,
    pub name: String,
}

impl fmt::Display for FilterRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter {} `{}`", self.id, self.name)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the filter {library}: {why}")]
pub struct PluginError {
    pub library: PathBuf,
    why: String,
}

/// `H5PL_TYPE_FILTER`.
const TYPE_FILTER: c_int = 0;
/// `H5Z_CLASS_T_VERS`: the version of [`FilterClass`].
const CLASS_VERSION: c_int = 1;
/// `H5Z_FLAG_REVERSE`.
const REVERSE: c_uint = 0x0100;
/// Lower identifiers belong to HDF5's own filters.
const ID_MIN: u16 = 256;
/// A name has a two-byte length in the file, and needs far less.
const NAME_BYTES_MAX: usize = 255;

/// `H5Z_func_t`. The function takes ownership of the buffer and may replace it; both buffers come from malloc.
type Run = unsafe extern "C" fn(c_uint, usize, *const c_uint, usize, *mut usize, *mut *mut c_void) -> usize;

/// `H5Z_class2_t`.
#[repr(C)]
struct FilterClass {
    version: c_int,
    id: c_int,
    encoder_present: c_uint,
    decoder_present: c_uint,
    name: *const c_char,
    can_apply: *const c_void,
    set_local: *const c_void,
    run: Option<Run>,
}

unsafe extern "C" {
    fn malloc(bytes: usize) -> *mut c_void;
    fn free(buffer: *mut c_void);
}

/// A loaded filter.
pub struct Plugin {
    choice: PluginChoice,
    pub registered: FilterRegistration,
    pub decodes: bool,
    run: Run,
    exclusive: Mutex<()>,
    /// Keeps the code of `run` loaded for the lifetime of this object.
    _library: Library,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("choice", &self.choice).field("registered", &self.registered).finish()
    }
}

impl Plugin {
    /// # Errors
    /// If the library cannot be loaded, or is not a filter that compresses.
    pub fn load(choice: &PluginChoice) -> Result<Plugin, PluginError> {
        let error = |why: String| PluginError { library: choice.library.clone(), why };
        // Opening a path that is not a regular file may block for ever. The dynamic loader resolves a name without a
        // directory.
        if std::fs::metadata(&choice.library).is_ok_and(|there| !there.is_file()) {
            return Err(error("it is not a file".into()));
        }
        // SAFETY: the user trusts the library by naming it; loading it runs its initialisers.
        let library = unsafe { Library::new(&choice.library) };
        // The system's message is in the source of the error.
        let why = |cause: libloading::Error| cause.source().map_or_else(|| cause.to_string(), ToString::to_string);
        let library = library.map_err(|cause| error(format!("it cannot be loaded: {}", why(cause))))?;
        let class = class(&library).map_err(error)?;
        let run = class.run.ok_or_else(|| error("it has no filter function".into()))?;
        if class.version != CLASS_VERSION || class.encoder_present == 0 {
            return Err(error(format!(
                "it implements version {} of HDF5's interface, or does not compress",
                class.version
            )));
        }
        let id = u16::try_from(class.id).ok().filter(|id| *id >= ID_MIN);
        let id =
            id.ok_or_else(|| error(format!("its identifier {} is not in the range for user filters", class.id)))?;
        let name = match class.name.is_null() {
            true => String::new(),
            // SAFETY: the interface requires a string there that lives as long as the library.
            false => unsafe { CStr::from_ptr(class.name) }.to_string_lossy().into_owned(),
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(error(format!("its name has {} bytes", name.len())));
        }
        let registered = FilterRegistration { id, name };
        if let Some(known) = choice.registered.as_ref().filter(|known| **known != registered) {
            return Err(error(format!("it is {registered}, the run was started with {known}")));
        }
        let decodes = class.decoder_present != 0;
        Ok(Plugin { choice: choice.clone(), registered, decodes, run, exclusive: Mutex::new(()), _library: library })
    }

    /// Filters `chunk` and appends the result to `out`.
    ///
    /// # Errors
    /// If the filter fails.
    pub fn encode(&self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), PluginError> {
        self.apply(0, chunk, out)
    }

    /// Decodes `chunk` and appends the result to `out`.
    ///
    /// # Errors
    /// If the filter fails.
    pub fn decode(&self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), PluginError> {
        self.apply(REVERSE, chunk, out)
    }

    fn apply(&self, flags: c_uint, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), PluginError> {
        let error = |why: String| PluginError { library: self.choice.library.clone(), why };
        let _alone = self.choice.exclusive.then(|| self.exclusive.lock());
        let values = &self.choice.values;
        // SAFETY: `malloc` has no preconditions.
        let mut buffer = unsafe { malloc(chunk.len().max(1)) };
        if buffer.is_null() {
            return Err(error(format!("no memory for {} bytes", chunk.len())));
        }
        let mut size = chunk.len();
        // SAFETY: the buffer has the chunk's length, and the interface lets the filter replace it. The filter's output
        // lies at the start of the buffer that it leaves, which has `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(chunk.as_ptr(), buffer.cast(), chunk.len());
            let length = (self.run)(flags, values.len(), values.as_ptr(), chunk.len(), &mut size, &mut buffer);
            let failed = length == 0 || length > size || buffer.is_null();
            if !failed {
                out.extend_from_slice(std::slice::from_raw_parts(buffer.cast::<u8>(), length));
            }
            free(buffer);
            if failed {
                return Err(error(format!("it failed on a chunk of {} bytes with values {values:?}", chunk.len())));
            }
        }
        Ok(())
    }
}

fn class(library: &Library) -> Result<&FilterClass, String> {
    // SAFETY: the types are those of the plug-in interface.
    unsafe {
        let kind: Symbol<'_, unsafe extern "C" fn() -> c_int> =
            library.get(b"H5PLget_plugin_type").map_err(|_| "it is not an HDF5 plug-in: no H5PLget_plugin_type")?;
        if kind() != TYPE_FILTER {
            return Err("it is an HDF5 plug-in, but not a filter".into());
        }
        let info: Symbol<'_, unsafe extern "C" fn() -> *const FilterClass> =
            library.get(b"H5PLget_plugin_info").map_err(|_| "it is not an HDF5 plug-in: no H5PLget_plugin_info")?;
        info().as_ref().ok_or_else(|| "its H5PLget_plugin_info returns nothing".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a path that is not a regular file is refused without opening it, because opening may block for ever.
    #[test]
    fn plugin_path_must_be_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
        for library in [fifo, directory.path().to_owned()] {
            let choice = PluginChoice { library, values: Vec::new(), exclusive: false, registered: None };
            let refused = Plugin::load(&choice).expect_err("no filter").to_string();
            assert!(refused.contains("it is not a file"), "{refused}");
        }
    }
}
