//! Calls about names in directories.

use super::open_files::use_of_opened;
use super::request_handler::{CompletedCall, RequestHandler};
use super::{errno, translate};
use crate::shards::{LeaseKey, LeaseTicket, Makes, Registrar, RequestAddress};
use std::cell::Cell;
use varve_posix::{
    Create, CreateUnnamed, Entry, Link, Lookup, MakeDirectory, Node, Refusal, RemoveDirectory, Rename, ReviveDirectory,
    Unlink,
};
use varve_proto::{CallFailure, EntryReply, Locator, NewNode, RenameFlags, Reply};
use varve_types::{Errno, FileKind, InodeId, Mode, Name, NameHash, ShardId};

impl RequestHandler<'_> {
    pub async fn lookup(&self, parent: u64, name: &[u8]) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        let key = LeaseKey::name(parent, name.hash());
        let ticket = self.shard.leases().ticket(key);
        let found = self.ask(&Lookup { parent, name }, address).await?;
        let lease_ms = match found {
            Entry::Elsewhere { kind: FileKind::Directory, .. } => self.lease(key, ticket),
            Entry::Elsewhere { .. } | Entry::Node(_) => 0,
        };
        let mut entry = translate::entry(&found);
        if let EntryReply::Node(node) = &mut entry {
            self.fill_stale_size(std::slice::from_mut(node)).await?;
        }
        Ok(Reply::Entry { entry, lease_ms }.into())
    }

    /// How many milliseconds the caller may cache what it has read since it took the ticket.
    pub fn lease(&self, key: LeaseKey, ticket: LeaseTicket) -> u32 {
        let now = self.worker.shared.clock.monotonic();
        self.shard.leases().grant(key, self.caller.session, ticket, now).as_millis() as u32
    }

    pub async fn create(
        &self,
        parent: u64,
        name: &[u8],
        node: NewNode,
        mode: u16,
        open: bool,
    ) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        let verb = Create { parent, name, node: translate::new_node(node), mode: Mode::new(mode.into()) };
        let of = |decided: Result<&Node, &Refusal>| use_of_opened(self.caller.session, true, decided);
        let opener = Registrar { of: &of, writer_gone: &Cell::new(false) };
        self.change_registering(&verb, address, Makes::File, open.then_some(opener), made).await
    }

    pub async fn create_unnamed(&self, parent: u64, mode: u16, linkable: bool) -> Result<CompletedCall, CallFailure> {
        let parent = self.inode(parent)?;
        let at = NameHash::FIRST;
        let verb = CreateUnnamed { parent, at, mode: Mode::new(mode.into()), linkable };
        let of = |decided: Result<&Node, &Refusal>| use_of_opened(self.caller.session, true, decided);
        let opener = Registrar { of: &of, writer_gone: &Cell::new(false) };
        let address = RequestAddress::Name(parent, at);
        self.change_registering(&verb, address, Makes::File, Some(opener), made).await
    }

    pub async fn make_directory(&self, parent: u64, name: &[u8], mode: u16) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        let makes = Makes::Directory { home: self.home_for(parent, &name) };
        let verb = MakeDirectory { parent, name, mode: Mode::new(mode.into()) };
        self.change(&verb, address, makes, made).await
    }

    pub async fn revive_directory(&self, parent: u64, name: &[u8]) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        let verb = ReviveDirectory { parent, name };
        self.change(&verb, address, Makes::Nothing, made).await
    }

    /// Spreads directories over all shards by a hash of name and parent, so that a retry chooses the same home shard.
    fn home_for(&self, parent: InodeId, name: &Name) -> ShardId {
        let mixed = (name.hash().0 ^ parent.0.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ShardId((mixed >> 48) as u16 & (self.worker.shared.settings.shards.get() - 1))
    }

    pub async fn unlink(&self, parent: u64, name: &[u8]) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        self.change(&Unlink { parent, name }, address, Makes::Nothing, translate::removed).await
    }

    pub async fn remove_directory(&self, parent: u64, name: &[u8]) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        self.change(&RemoveDirectory { parent, name }, address, Makes::Nothing, translate::removed).await
    }

    pub async fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: RenameFlags,
    ) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        let (new_parent, new_name, _) = self.name(new_parent, new_name)?;
        let flags = translate::rename_flags(flags);
        let makes = if flags.leaves_whiteout() { Makes::File } else { Makes::Nothing };
        let verb = Rename { parent, name, new_parent, new_name, flags };
        self.change(&verb, address, makes, translate::removed).await
    }

    pub async fn link(
        &self,
        source: Locator,
        inode: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<CompletedCall, CallFailure> {
        let (parent, name, address) = self.name(parent, name)?;
        let (source, _) = self.at(source)?;
        if source.inode().0 != inode {
            return Err(errno(Errno::EINVAL));
        }
        let reply = |entry: &_| Reply::Entry { entry: translate::entry(entry), lease_ms: 0 };
        self.change(&Link { source, parent, name }, address, Makes::Nothing, reply).await
    }
}

fn made(node: &Node) -> Reply {
    Reply::Node(translate::node(node))
}
