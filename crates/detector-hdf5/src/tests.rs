use super::checksum::lookup3;
use super::superblock::Superblock;
use super::*;

/// The author's test vectors (lookup3.c, `driver5`).
#[test]
fn lookup3_matches_reference_values() {
    assert_eq!(lookup3(b""), 0xdead_beef);
    assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
}

#[test]
fn superblock_has_its_golden_bytes() {
    let bytes = Superblock { root: 0x1234, end: 0x5678 }.encode();
    let golden = b"\x89HDF\r\n\x1a\n\x03\x08\x08\x00\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\
        \x78\x56\0\0\0\0\0\0\x34\x12\0\0\0\0\0\0";
    assert_eq!(&bytes[..44], golden);
    assert_eq!(bytes[44..], lookup3(golden).to_le_bytes());
    let mut whole: [u8; 48] = bytes.try_into().expect("48 bytes");
    assert_eq!(Superblock::decode(&whole), Some(Superblock { root: 0x1234, end: 0x5678 }));
    whole[30] ^= 1;
    assert_eq!(Superblock::decode(&whole), None);
}

fn chunks(unlimited: usize, count: u64) -> ChunkMap {
    let max = (0..2).map(|dim| (dim >= unlimited).then_some(count)).collect();
    let mut chunks = ChunkMap::new(Grid::new(vec![count, 1], max, vec![1, 1], 2), true);
    chunks.set(&[0, 0], ChunkRecord { address: 0x1000, size: 5, mask: 0 });
    chunks
}

/// A fixed array of two elements, the second absent: header, data block, and the layout message that refers to them.
#[test]
fn fixed_array_has_its_golden_bytes() {
    let mut image = FileImage::new(0x800);
    let layout = index::encode(&mut image, IndexKind::FixedArray, &chunks(0, 2));
    assert_eq!(layout, b"\x04\x02\x00\x03\x01\x01\x01\x02\x03\x0a\x00\x08\0\0\0\0\0\0");
    let bytes = image.into_bytes();
    assert_eq!(&bytes[..24], b"FAHD\x00\x01\x0e\x0a\x04\0\0\0\0\0\0\0\x20\x08\0\0\0\0\0\0");
    assert_eq!(&bytes[32..46], b"FADB\x00\x01\x00\x08\0\0\0\0\0\0");
    assert_eq!(&bytes[46..60], b"\x00\x10\0\0\0\0\0\0\x05\0\0\0\0\0");
    assert_eq!(&bytes[60..68], [0xff; 8]);
}

#[test]
fn index_follows_from_the_unlimited_dimensions() {
    assert_eq!(chunks(0, 2).grid().index_kind(), IndexKind::FixedArray);
    assert_eq!(chunks(1, 2).grid().index_kind(), IndexKind::ExtensibleArray);
    assert_eq!(chunks(2, 2).grid().index_kind(), IndexKind::BtreeV2);
    assert_eq!(chunks(0, index::FIXED_ARRAY_CHUNKS_MAX + 1).grid().index_kind(), IndexKind::BtreeV2);
}
