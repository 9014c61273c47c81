//! Publication of a commit. A commit writes its changes to unused space and syncs them; then the
//! superblock that refers to it is written and synced. Nothing that the superblock refers to changes, so a reader that
//! opens the file at any time finds a complete file. Metadata are written to space reserved in advance
//! ([`crate::space_reservation`]). Space that only earlier commits refer to is reused when their readers are gone.

use crate::space_reservation::{Space, SpaceReservation};
use parking_lot::Mutex;
use std::io;
use std::os::unix::fs::FileExt;
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::structure;
use varve_detector_dataset::time::unix_nanos;
use varve_detector_hdf5::superblock::Superblock;
use varve_detector_hdf5::{FileImage, tree};

/// The result of a commit.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// End of the file as readers see it.
    pub end: u64,
    /// Bytes of the file that the commit takes.
    pub bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Nothing was written. A later commit can publish the same state and the frames that came meanwhile.
    #[error("no space for a commit: {0}")]
    NoRoom(io::Error),
    /// Readers see the previous commit.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<PublishError> for io::Error {
    fn from(error: PublishError) -> io::Error {
        match error {
            PublishError::NoRoom(source) | PublishError::Io(source) => source,
        }
    }
}

/// Writes the changes of `catalog` and makes them visible to readers. The chunks must already be synced.
///
/// # Errors
/// If the file cannot be written or synced, or has no space.
pub fn publish(
    space: Space<'_>,
    room: &Mutex<SpaceReservation>,
    catalog: &mut Catalog,
) -> Result<Published, PublishError> {
    let Space { file, length, allocator } = space;
    let place = room.lock().begin(space, catalog.changed_bytes()).map_err(PublishError::NoRoom)?;
    let data = catalog.store(place.data.start);
    let columns = room.lock().shorten(place.data, data.block.len() as u64);
    file.write_all_at(&data.block, columns.start)?;
    for (address, rows) in &data.in_place {
        file.write_all_at(rows, *address)?;
    }
    // The length does not depend on the address: the image is built once for its length and again at its address.
    let bytes_needed = image(catalog, 0)?.0.len() as u64;
    let place = room.lock().settle(space, place.tree, (bytes_needed, catalog.index_bytes()))?;
    let (bytes, root) = image(catalog, place.start)?;
    assert_eq!(bytes.len() as u64, bytes_needed, "metadata take the same space wherever they lie");
    file.write_all_at(&bytes, place.start)?;
    allocator.fill(columns.end.max(place.end));
    let end = allocator.used();
    length.ensure(file, end)?;
    file.sync_data()?;
    std::thread::sleep(length.unsettled(end));
    file.write_all_at(&Superblock { root, end }.encode(), 0)?;
    file.sync_data()?;
    room.lock().supersede(data.superseded, place.clone(), end);
    catalog.publish(unix_nanos());
    Ok(Published { end, bytes: (columns.end - columns.start) + (place.end - place.start) })
}

pub fn image(catalog: &Catalog, base: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut image = FileImage::new(base);
    let root = tree::encode(&mut image, &structure::tree(catalog)).map_err(io::Error::other)?;
    Ok((image.into_bytes(), root))
}
