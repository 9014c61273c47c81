//! Listings, in the order of the objects' paths. Without entity tags: those would require reading every object.

use super::error::{failed, is_absence};
use super::read::object_meta;
use super::{Inner, PosixStore};
use crate::disk;
use crate::store_path::StorePath;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path as ObjectPath;
use object_store::{Extensions, ListResult, ObjectMeta, Result};
use std::io;

impl PosixStore {
    /// Lists objects below `prefix` and after `offset`.
    pub(super) fn list_stream(
        &self,
        prefix: Option<&ObjectPath>,
        offset: Option<&ObjectPath>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix, offset) = (self.clone(), prefix.cloned(), offset.cloned());
        futures::stream::once(async move {
            let listed = store.off_thread(move |inner| inner.list_below(prefix.as_ref(), offset.as_ref())).await;
            match listed {
                Ok(objects) => futures::stream::iter(objects.into_iter().map(Ok)).boxed(),
                Err(error) => futures::stream::once(futures::future::ready(Err(error))).boxed(),
            }
        })
        .flatten()
        .boxed()
    }
}

/// Kind of a directory's entry.
enum ListedObject {
    Object,
    Directory,
}

impl Inner {
    fn list_below(&self, prefix: Option<&ObjectPath>, offset: Option<&ObjectPath>) -> Result<Vec<ObjectMeta>> {
        let prefix = prefix.cloned().unwrap_or_default();
        let mut objects = Vec::new();
        let mut directories = vec![prefix];
        while let Some(directory) = directories.pop() {
            for (location, child) in self.children(&directory)? {
                match child {
                    ListedObject::Directory => directories.push(location),
                    ListedObject::Object if offset.is_some_and(|offset| location <= *offset) => {}
                    ListedObject::Object => objects.extend(self.meta(location)?),
                }
            }
        }
        objects.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        Ok(objects)
    }

    pub(super) fn list_level(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        let mut result = ListResult { common_prefixes: Vec::new(), objects: Vec::new(), extensions: Extensions::new() };
        for (location, child) in self.children(&prefix)? {
            match child {
                ListedObject::Object => result.objects.extend(self.meta(location)?),
                // Deletes leave empty directories behind, which are not prefixes of any object.
                ListedObject::Directory if self.holds_objects(&location)? => result.common_prefixes.push(location),
                ListedObject::Directory => {}
            }
        }
        result.objects.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        result.common_prefixes.sort_unstable();
        Ok(result)
    }

    fn holds_objects(&self, directory: &ObjectPath) -> Result<bool> {
        for (location, child) in self.children(directory)? {
            if matches!(child, ListedObject::Object) || self.holds_objects(&location)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The entries directly below `location`; empty if it does not exist or is an object, in a store that is present.
    /// Skips foreign files whose names are not valid for an object.
    fn children(&self, location: &ObjectPath) -> Result<Vec<(ObjectPath, ListedObject)>> {
        let directory = self.file(location)?;
        match read_children(&directory, location).map_err(|error| self.vouched(location, error)) {
            Err(error) if is_absence(&error) => Ok(Vec::new()),
            other => other.map_err(failed("list", location)),
        }
    }

    /// `None` if the object was removed meanwhile.
    fn meta(&self, location: ObjectPath) -> Result<Option<ObjectMeta>> {
        match self.file(&location)?.metadata().map_err(|error| self.vouched(&location, error)) {
            Ok(metadata) => Ok(Some(object_meta(location, &metadata))),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(failed("list", &location)(error)),
        }
    }
}

fn read_children(directory: &StorePath, location: &ObjectPath) -> io::Result<Vec<(ObjectPath, ListedObject)>> {
    let mut children = Vec::new();
    for entry in directory.read_dir()? {
        let Some(name) = entry.file_name().to_str() else { continue };
        if name.starts_with(disk::RESERVED_PREFIX) {
            continue;
        }
        let path = if location.as_ref().is_empty() { name.to_owned() } else { format!("{location}/{name}") };
        let Ok(path) = ObjectPath::parse(path) else { continue };
        let kind = if entry.is_dir() { ListedObject::Directory } else { ListedObject::Object };
        children.push((path, kind));
    }
    Ok(children)
}
