//! Changes of attributes.

use super::FuseFrontend;
use super::caller::Callers;
use super::convert::sets_group_id;
use fuser::Request;
use varve_client::{Handle, NodeInfo, Result, block_on};
use varve_types::{Credentials, InodeId, SetAttributes};

impl FuseFrontend {
    pub(super) fn set_attributes(
        &self,
        request: &Request,
        inode: InodeId,
        set: SetAttributes,
        handle: Option<Handle>,
    ) -> Result<NodeInfo> {
        // Before a write the kernel requests that set-id bits are cleared by a SETATTR that names no attribute.
        if set == SetAttributes::default() {
            return block_on(self.fs.drop_set_id(&self.callers.identified(request), inode));
        }
        let change = |caller: &Credentials| block_on(self.fs.set_attributes(caller, inode, set, handle));
        // A new owner or size clears set-id bits, depending on the caller. `fuser` does not pass on the kernel's flag
        // for that (FATTR_KILL_SUIDGID).
        if set.uid.is_some() || set.gid.is_some() {
            return match self.callers {
                Callers::Kernel => change(&self.callers.identified(request)),
                _ => self.callers.run(request, change),
            };
        }
        if set.size.is_some() {
            return change(&self.callers.resizer(request));
        }
        match set.mode.is_some_and(|mode| sets_group_id(mode.bits().into())) {
            true => change(&self.callers.with_capabilities(request)),
            false => self.callers.run(request, change),
        }
    }
}
