//! Calls about files: attributes, content, sizes and extended attributes.

use super::request_handler::{CompletedCall, RequestHandler};
use super::translate;
use crate::shards::{Makes, MeasureTime, Registrar, RequestAddress};
use varve_posix::{
    BackingFile, ChangeAttributes, GetAttributes, GetXattr, Granted, ListXattrs, MarkSizeStale, Node, Open, Promote,
    RaiseSize, ReadLink, RecordSize, RemoveXattr, SetXattr, Verb, WriteInline,
};
use varve_proto::{
    CallFailure, FileContent, Locator, OpenMode, Reply, SizeState, WireSetAttributes, WireTime, XattrMode,
};
use varve_types::{LayoutGeneration, SetAttributes};

impl RequestHandler<'_> {
    pub async fn get_attributes(&self, at: Locator) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        let node = self.ask(&GetAttributes { at }, address).await?;
        self.node_reply(&node).await
    }

    pub async fn set_attributes(&self, at: Locator, set: WireSetAttributes) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        let set = SetAttributes::from(set);
        self.change_node(&ChangeAttributes { at, set }, address, None, |node| node).await
    }

    pub async fn open(&self, at: Locator, mode: OpenMode, truncate: bool) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        let writes = mode.writes();
        let granted = if truncate { Granted::Nothing } else { self.granted_before(at.inode(), writes).await? };
        let verb = Open { at: at.clone(), mode: translate::open_mode(mode), truncate, granted };
        if truncate {
            return self.resize(verb, at, address, Some(writes)).await;
        }
        let (node, writer_gone) = self.open_file(&verb, &at, address, writes).await?;
        let mut reply = translate::node(&node);
        self.fill_stale_size(std::slice::from_mut(&mut reply)).await?;
        if let (true, FileContent::Backing(SizeState::Stale { at_least })) = (writer_gone, &reply.content) {
            reply.content = FileContent::Backing(SizeState::WriterGone { at_least: *at_least });
        }
        Ok(Reply::Node(reply).into())
    }

    pub async fn write_inline(
        &self,
        at: Locator,
        generation: u32,
        data: Vec<u8>,
        mtime: Option<WireTime>,
    ) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at).await?;
        let generation = LayoutGeneration(generation);
        let verb = WriteInline { at, generation, data: data.into(), mtime: mtime.map(Into::into) };
        self.change_node(&verb, address, None, |node| node).await
    }

    pub async fn promote(&self, at: Locator, generation: u32, size: u64) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at).await?;
        let verb = Promote { at: at.clone(), generation: LayoutGeneration(generation), size };
        self.resize(verb, at, address, None).await
    }

    pub async fn mark_size_stale(
        &self,
        at: Locator,
        generation: u32,
        at_least: u64,
    ) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at).await?;
        let inode = at.inode();
        let file = BackingFile { at: at.clone(), generation: LayoutGeneration(generation) };
        let verb = MarkSizeStale { file, at_least };
        let answered = self.resize(verb, at, address, None).await?;
        self.shard.mark_size_stale_on_disk(inode).await.map_err(translate::failure)?;
        Ok(answered)
    }

    pub async fn record_size(
        &self,
        at: Locator,
        generation: u32,
        size: u64,
        mtime: WireTime,
    ) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        self.check_was_written(&at).await?;
        let file = BackingFile { at: at.clone(), generation: LayoutGeneration(generation) };
        let verb = RecordSize { file, size, mtime: mtime.into() };
        let (answered, writers_unknown) = self.record_measured(verb, at, address, MeasureTime::Last).await?;
        if let Some(wait) = writers_unknown {
            let milliseconds = wait.as_millis();
            return Err(CallFailure::WritersUnknown { milliseconds: milliseconds.try_into().unwrap_or(u32::MAX) });
        }
        Ok(answered)
    }

    pub async fn raise_size(&self, at: Locator, generation: u32, at_least: u64) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        self.check_may_write(&at).await?;
        let file = BackingFile { at: at.clone(), generation: LayoutGeneration(generation) };
        let recorded = self.record_measured(RaiseSize { file, at_least }, at, address, MeasureTime::Underway).await?;
        Ok(recorded.0)
    }

    pub async fn read_link(&self, at: Locator) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        let target = self.ask(&ReadLink { at }, address).await?;
        Ok(Reply::Target(target.to_vec()).into())
    }

    pub async fn get_xattr(&self, at: Locator, name: Vec<u8>) -> Result<CompletedCall, CallFailure> {
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
    ) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        let verb = SetXattr { at, name: name.into(), value: value.into(), mode: translate::xattr_mode(mode) };
        self.change(&verb, address, Makes::Nothing, |_| Reply::Done).await
    }

    pub async fn list_xattrs(&self, at: Locator) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        let names = self.ask(&ListXattrs { at }, address).await?;
        Ok(Reply::Xattrs(names.iter().map(|name| name.to_vec()).collect()).into())
    }

    pub async fn remove_xattr(&self, at: Locator, name: Vec<u8>) -> Result<CompletedCall, CallFailure> {
        let (at, address) = self.at(at)?;
        self.change(&RemoveXattr { at, name: name.into() }, address, Makes::Nothing, |_| Reply::Done).await
    }

    /// Runs a change whose reply is the file's new state, which `node` finds in its outcome.
    pub async fn change_node<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        registrar: Option<Registrar<'_, V::Outcome>>,
        node: impl Fn(&V::Outcome) -> &Node,
    ) -> Result<CompletedCall, CallFailure> {
        let size_stale = std::cell::RefCell::new(None);
        let reply = |outcome: &V::Outcome| {
            let reply = translate::node(node(outcome));
            if translate::is_size_stale_reply(&reply) {
                size_stale.replace(Some(reply.clone()));
            }
            Reply::Node(reply)
        };
        let answered = self.change_registering(verb, address, Makes::Nothing, registrar, reply).await?;
        // The recorded reply has the row's size; the reply that is sent has the backing file's size.
        match size_stale.take() {
            None => Ok(answered),
            Some(mut node) => {
                self.fill_stale_size(std::slice::from_mut(&mut node)).await?;
                Ok(Reply::Node(node).into())
            }
        }
    }

    async fn node_reply(&self, node: &Node) -> Result<CompletedCall, CallFailure> {
        let mut reply = translate::node(node);
        self.fill_stale_size(std::slice::from_mut(&mut reply)).await?;
        Ok(Reply::Node(reply).into())
    }
}
