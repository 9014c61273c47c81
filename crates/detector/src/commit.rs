//! Publishing: the whole metadata written at the file's tail, synced, then the superblock that leads to it. Nothing that
//! a superblock ever led to is changed, so that whoever opens the file at any moment opens a whole one.

use crate::allocate::Allocator;
use crate::catalog::Catalog;
use crate::hdf5::superblock::Superblock;
use crate::hdf5::{Image, tree};
use crate::length::Length;
use crate::structure;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Writes what `catalog` knows and makes it what readers see. Chunks must have been synced before. Answers the end of
/// the file as readers see it.
///
/// # Errors
/// If the file cannot be written or synced; readers then see the commit before.
pub(crate) fn publish(file: &File, length: &Length, allocator: &Allocator, catalog: &mut Catalog) -> io::Result<u64> {
    // Its length does not depend on where it lies: made once to learn it, and again at its address.
    let bytes_needed = image(catalog, 0)?.0.len() as u64;
    let extent = allocator.extent(bytes_needed);
    let (mut bytes, root) = image(catalog, extent.start)?;
    assert_eq!(bytes.len() as u64, bytes_needed, "metadata take the same space wherever they lie");
    // Everything that the catalog names was allocated before: this extent is the highest, and ends the file.
    bytes.resize((extent.end - extent.start) as usize, 0);
    length.ensure(file, extent.end)?;
    file.write_all_at(&bytes, extent.start)?;
    file.sync_data()?;
    std::thread::sleep(length.unsettled(extent.end));
    file.write_all_at(&Superblock { root, end: extent.end }.encode(), 0)?;
    file.sync_data()?;
    catalog.publish();
    Ok(extent.end)
}

fn image(catalog: &Catalog, base: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut image = Image::new(base);
    let root = tree::encode(&mut image, &structure::tree(catalog)).map_err(io::Error::other)?;
    Ok((image.into_bytes(), root))
}
