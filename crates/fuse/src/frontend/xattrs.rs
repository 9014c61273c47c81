//! Extended attributes: those of files, and the virtual ones that describe the mount ([`crate::virtual_xattrs`]).

use super::FuseFrontend;
use super::caller::{Callers, identity};
use crate::virtual_xattrs as own;
use fuser::Request;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use varve_client::{FILE_CAPABILITIES, Failure, Result, XattrMode, block_on};
use varve_types::{Credentials, Errno, InodeId};

/// The namespace of attributes that only privileged users see.
const TRUSTED: &[u8] = b"trusted.";

impl FuseFrontend {
    pub(super) fn get_xattr(&self, request: &Request, inode: InodeId, name: &OsStr) -> Result<Vec<u8>> {
        let name = name.as_bytes();
        // Without the capability, the server answers that there is no such attribute.
        if name.starts_with(TRUSTED) {
            return block_on(self.fs.get_xattr(&self.callers.with_capabilities(request), inode, name));
        }
        match (name, inode) {
            (own::INFO, _) => {
                Ok(own::description(&block_on(self.fs.describe(&identity(request), inode))?).into_bytes())
            }
            (own::STATS, InodeId::ROOT) => Ok(own::counters(&self.fs, self.files.passthrough.count()).into_bytes()),
            (own::PROCESS, InodeId::ROOT) => own::own_process().map(String::into_bytes).map_err(unseen),
            (own::SYNC, InodeId::ROOT) => block_on(self.fs.sync()).map(|()| Vec::new()),
            (own::RECORD_SIZES, InodeId::ROOT) => Ok(block_on(self.fs.record_known_sizes())
                .as_ref()
                .map(own::size_stale)
                .unwrap_or_default()
                .into_bytes()),
            _ if name.starts_with(own::PREFIX) => Err(Errno::ENODATA.into()),
            _ => self.callers.run(request, |caller| block_on(self.fs.get_xattr(caller, inode, name))),
        }
    }

    pub(super) fn set_xattr(
        &self,
        caller: &Credentials,
        inode: InodeId,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let mode = match flags {
            0 => XattrMode::CreateOrReplace,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL.into()),
        };
        let name = settable(name)?;
        block_on(self.fs.set_xattr(caller, inode, name, value, mode))
    }

    /// The names, each followed by a NUL.
    pub(super) fn list_xattrs(&self, caller: &Credentials, inode: InodeId) -> Result<Vec<u8>> {
        let names = block_on(self.fs.list_xattrs(caller, inode))?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    pub(super) fn remove_xattr(&self, request: &Request, inode: InodeId, name: &OsStr) -> Result<()> {
        let name = settable(name)?;
        // The kernel removes file capabilities in the name of a writer, who may have no other right to the file. It
        // checks removexattr(2) of this name itself.
        if name == FILE_CAPABILITIES && !matches!(self.callers, Callers::Ids { .. }) {
            return block_on(self.fs.remove_xattr(&Credentials::root(), inode, name));
        }
        self.callers.run(request, |caller| block_on(self.fs.remove_xattr(caller, inode, name)))
    }
}

fn settable(name: &OsStr) -> Result<&[u8]> {
    match name.as_bytes() {
        name if name.starts_with(own::PREFIX) => Err(Errno::EPERM.into()),
        name => Ok(name),
    }
}

fn unseen(error: std::io::Error) -> Failure {
    Failure::new(Errno::EIO, format!("this process cannot see itself in /proc: {error}"))
}
