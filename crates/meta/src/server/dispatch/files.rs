//! Calls about files by what they are.

use super::super::leases::LeaseKey;
use super::case::{Answered, Case};
use super::translate;
use crate::namespace::{
    BackingFile, ChangeAttributes, GetAttributes, GetXattr, Granted, ListXattrs, Node, Open, Promote, RaiseSize,
    ReadLink, RemoveXattr, SetXattr, SettleSize, UnsettleSize, Verb, WriteInline,
};
use crate::shards::{Address, Makes};
use varve_types::{LayoutGeneration, SetAttributes};
use varve_wire::{Failure, FileContent, Locator, OpenMode, Reply, SizeState, WireSetAttributes, WireTime, XattrMode};

impl Case<'_> {
    pub async fn get_attributes(&self, at: Locator) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        let node = self.ask(&GetAttributes { at }, address).await?;
        self.node_reply(&node).await
    }

    pub fn get_attributes_at_once(&self, at: &Locator) -> Result<Option<Reply>, Failure> {
        let (at, address) = self.at(at.clone())?;
        let found = self.ask_at_once(&GetAttributes { at }, address)?;
        Ok(found.filter(|node| !translate::is_unsettled(node)).map(|node| Reply::Node(translate::node(&node))))
    }

    pub async fn set_attributes(&self, at: Locator, set: WireSetAttributes) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        let set = SetAttributes::from(set);
        let guards = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let _hold = match address {
            Address::Inode(inode) if guards => self.hold(&[LeaseKey::attributes(inode)]).await,
            _ => None,
        };
        self.change_node(&ChangeAttributes { at, set }, address).await
    }

    pub async fn open(&self, at: Locator, mode: OpenMode, truncate: bool) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        let writes = mode != OpenMode::Read;
        let granted = if truncate { Granted::Nothing } else { self.granted_before(at.inode(), writes) };
        let verb = Open { at: at.clone(), mode: translate::open_mode(mode), truncate, granted };
        if truncate {
            return self.change_node(&self.resizing(at, self.opening(verb, writes)), address).await;
        }
        let left = self.left_by_all(at.inode());
        let verb = self.opening(verb, writes).or_keeping(self.may_have_opened(at.inode()));
        let node = self.ask(&verb, address).await?;
        let mut reply = translate::node(&node);
        self.fill_unsettled(std::slice::from_mut(&mut reply)).await?;
        if let (true, FileContent::Backing(SizeState::Unsettled { at_least })) = (left, &reply.content) {
            reply.content = FileContent::Backing(SizeState::Left { at_least: *at_least });
        }
        Ok(Reply::Node(reply).into())
    }

    pub async fn write_inline(
        &self,
        at: Locator,
        generation: u32,
        data: Vec<u8>,
        mtime: Option<WireTime>,
    ) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at)?;
        let generation = LayoutGeneration(generation);
        let verb = WriteInline { at, generation, data: data.into(), mtime: mtime.map(Into::into) };
        self.change_node(&verb, address).await
    }

    pub async fn promote(&self, at: Locator, generation: u32, size: u64) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at)?;
        let verb = Promote { at: at.clone(), generation: LayoutGeneration(generation), size };
        self.change_node(&self.resizing(at, verb), address).await
    }

    pub async fn unsettle_size(&self, at: Locator, generation: u32, at_least: u64) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at)?;
        let inode = at.inode();
        let file = BackingFile { at: at.clone(), generation: LayoutGeneration(generation) };
        let verb = UnsettleSize { file, at_least };
        let answered = self.change_node(&self.resizing(at, verb), address).await?;
        self.shard.unsettled_on_disk(inode).await.map_err(translate::failure)?;
        Ok(answered)
    }

    pub async fn settle_size(
        &self,
        at: Locator,
        generation: u32,
        size: u64,
        mtime: WireTime,
    ) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        self.check_was_written(&at)?;
        let file = BackingFile { at: at.clone(), generation: LayoutGeneration(generation) };
        let verb = self.settling(at, SettleSize { file, size, mtime: mtime.into() });
        let answered = self.change_node(&verb, address).await?;
        if verb.writers_unknown.get() {
            let milliseconds = self.until_sessions_are_known().as_millis() + 1;
            return Err(Failure::WritersUnknown { milliseconds: milliseconds.try_into().unwrap_or(u32::MAX) });
        }
        Ok(answered)
    }

    pub async fn raise_size(&self, at: Locator, generation: u32, at_least: u64) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at)?;
        let file = BackingFile { at: at.clone(), generation: LayoutGeneration(generation) };
        self.change_node(&self.raising(at, RaiseSize { file, at_least }), address).await
    }

    pub async fn read_link(&self, at: Locator) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        let target = self.ask(&ReadLink { at }, address).await?;
        Ok(Reply::Target(target.to_vec()).into())
    }

    pub async fn get_xattr(&self, at: Locator, name: Vec<u8>) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        let value = self.ask(&GetXattr { at, name: name.into() }, address).await?;
        Ok(Reply::Xattr(value.to_vec()).into())
    }

    pub async fn set_xattr(
        &self,
        at: Locator,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        let verb = SetXattr { at, name: name.into(), value: value.into(), mode: translate::xattr_mode(mode) };
        self.change(&verb, address, Makes::Nothing, |_| Reply::Done).await
    }

    pub async fn list_xattrs(&self, at: Locator) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        let names = self.ask(&ListXattrs { at }, address).await?;
        Ok(Reply::Xattrs(names.iter().map(|name| name.to_vec()).collect()).into())
    }

    pub async fn remove_xattr(&self, at: Locator, name: Vec<u8>) -> Result<Answered, Failure> {
        let (at, address) = self.at(at)?;
        self.change(&RemoveXattr { at, name: name.into() }, address, Makes::Nothing, |_| Reply::Done).await
    }

    /// Runs a change that answers the file as it is now.
    async fn change_node<V: Verb<Outcome = Node>>(&self, verb: &V, address: Address) -> Result<Answered, Failure> {
        let unsettled = std::cell::RefCell::new(None);
        let reply = |node: &Node| {
            let reply = translate::node(node);
            if translate::is_unsettled_reply(&reply) {
                unsettled.replace(Some(reply.clone()));
            }
            Reply::Node(reply)
        };
        let answered = self.change(verb, address, Makes::Nothing, reply).await?;
        // The recorded answer has the row's size; what is sent has the backing file's.
        match unsettled.take() {
            None => Ok(answered),
            Some(mut node) => {
                self.fill_unsettled(std::slice::from_mut(&mut node)).await?;
                Ok(Reply::Node(node).into())
            }
        }
    }

    async fn node_reply(&self, node: &Node) -> Result<Answered, Failure> {
        let mut reply = translate::node(node);
        self.fill_unsettled(std::slice::from_mut(&mut reply)).await?;
        Ok(Reply::Node(reply).into())
    }
}
