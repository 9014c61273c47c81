//! CBF's byte offset compression (International Tables for Crystallography G, 5.6.2.3.4). Each pixel is stored as its
//! difference from the previous one: in one byte if it fits, else in two, four or eight bytes after a marker.

use varve_detector_hdf5::ElementType;

/// Appends the compressed pixels to `out`. Elements have 8 to 32 bits.
pub fn encode(pixels: &[u8], element: ElementType, out: &mut Vec<u8>) {
    match element {
        ElementType::I8 => encode_all(pixels.iter().map(|byte| byte.cast_signed().into()), out),
        ElementType::U8 => encode_all(pixels.iter().map(|byte| (*byte).into()), out),
        ElementType::I16 => encode_all(words(pixels).map(|word| i16::from_le_bytes(word).into()), out),
        ElementType::U16 => encode_all(words(pixels).map(|word| u16::from_le_bytes(word).into()), out),
        ElementType::I32 => encode_all(words(pixels).map(|word| i32::from_le_bytes(word).into()), out),
        ElementType::U32 => encode_all(words(pixels).map(|word| u32::from_le_bytes(word).into()), out),
        other => unreachable!("CBF has no elements of type {other}: checked before"),
    }
}

fn words<const BYTES: usize>(pixels: &[u8]) -> impl Iterator<Item = [u8; BYTES]> {
    pixels.as_chunks().0.iter().copied()
}

fn encode_all(values: impl Iterator<Item = i64>, out: &mut Vec<u8>) {
    let mut before = 0_i64;
    for value in values {
        let step = value - before;
        before = value;
        // The lowest number of each width marks that a wider one follows.
        if let Ok(step) = i8::try_from(step)
            && step != i8::MIN
        {
            out.push(step.cast_unsigned());
            continue;
        }
        out.push(0x80);
        if let Ok(step) = i16::try_from(step)
            && step != i16::MIN
        {
            out.extend_from_slice(&step.to_le_bytes());
            continue;
        }
        out.extend_from_slice(&i16::MIN.to_le_bytes());
        if let Ok(step) = i32::try_from(step)
            && step != i32::MIN
        {
            out.extend_from_slice(&step.to_le_bytes());
            continue;
        }
        out.extend_from_slice(&i32::MIN.to_le_bytes());
        out.extend_from_slice(&step.to_le_bytes());
    }
}

/// Appends `bytes` bytes of pixels to `out`.
///
/// # Errors
/// If there are fewer pixels, or a value does not fit the element type.
pub fn decode(binary: &[u8], element: ElementType, bytes: usize, out: &mut Vec<u8>) -> Result<(), &'static str> {
    let (low, high) = match element {
        ElementType::I8 => (i8::MIN.into(), i8::MAX.into()),
        ElementType::U8 => (0, u8::MAX.into()),
        ElementType::I16 => (i16::MIN.into(), i16::MAX.into()),
        ElementType::U16 => (0, u16::MAX.into()),
        ElementType::I32 => (i32::MIN.into(), i32::MAX.into()),
        _ => (0, i64::from(u32::MAX)),
    };
    let mut rest = binary;
    let mut value = 0_i64;
    let end = out.len() + bytes;
    while out.len() < end {
        let step = step(&mut rest).ok_or("it has fewer pixels than its header declares")?;
        value =
            value.checked_add(step).filter(|value| (low..=high).contains(value)).ok_or("a pixel is out of range")?;
        out.extend_from_slice(&value.to_le_bytes()[..element.size()]);
    }
    Ok(())
}

fn step(rest: &mut &[u8]) -> Option<i64> {
    let [step] = take(rest)?;
    let step = i8::from_le_bytes([step]);
    if step != i8::MIN {
        return Some(step.into());
    }
    let step = i16::from_le_bytes(take(rest)?);
    if step != i16::MIN {
        return Some(step.into());
    }
    let step = i32::from_le_bytes(take(rest)?);
    if step != i32::MIN {
        return Some(step.into());
    }
    Some(i64::from_le_bytes(take(rest)?))
}

fn take<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}
