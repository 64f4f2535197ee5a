//! The little of protobuf that the log needs: the leading number fields of a message.

/// Why bytes are no message.
pub(super) type Malformed = &'static str;

/// The longest number in protobuf's encoding.
pub(super) const VARINT_MAX: usize = 10;

/// Adds one byte to a number; true when it was the last one.
pub(super) fn varint_step(value: &mut u64, position: usize, byte: u8) -> Result<bool, Malformed> {
    // The tenth byte has room for one bit.
    if position >= VARINT_MAX || (position == VARINT_MAX - 1 && byte > 1) {
        return Err("a number does not fit in 64 bits");
    }
    *value |= u64::from(byte & 0x7f) << (7 * position);
    Ok(byte & 0x80 == 0)
}

/// The number fields 1..=N of a message; other fields are skipped. `complete` is false if `bytes` is only its
/// beginning: then it is read as far as it goes.
pub(super) fn numbers<const N: usize>(bytes: &[u8], complete: bool) -> Result<[Option<u64>; N], Malformed> {
    let mut found = [None; N];
    let mut rest = bytes;
    while !rest.is_empty() {
        match field(rest)? {
            Some((Field::Number(number, value), after)) => {
                let place = number.checked_sub(1).and_then(|place| usize::try_from(place).ok());
                if let Some(place) = place.and_then(|place| found.get_mut(place)) {
                    *place = Some(value);
                }
                rest = after;
            }
            Some((Field::Other, after)) => rest = after,
            None if complete => return Err("a field is longer than its message"),
            None => break,
        }
    }
    Ok(found)
}

enum Field {
    /// A field number with its value.
    Number(u64, u64),
    /// Any other type.
    Other,
}

/// One field and what follows it; `None` if the bytes end inside it.
fn field(bytes: &[u8]) -> Result<Option<(Field, &[u8])>, Malformed> {
    let Some((key, after)) = varint(bytes)? else {
        return Ok(None);
    };
    let (length, after) = match key & 7 {
        0 => return Ok(varint(after)?.map(|(value, after)| (Field::Number(key >> 3, value), after))),
        1 => (8, after),
        2 => match varint(after)? {
            Some(found) => found,
            None => return Ok(None),
        },
        5 => (4, after),
        _ => return Err("a field has an unknown type"),
    };
    let rest = usize::try_from(length).ok().and_then(|length| after.get(length..));
    Ok(rest.map(|rest| (Field::Other, rest)))
}

/// A number and what follows it; `None` if the bytes end inside it.
fn varint(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, Malformed> {
    let mut value = 0;
    for (position, byte) in bytes.iter().enumerate() {
        if varint_step(&mut value, position, *byte)? {
            return Ok(bytes.get(position + 1..).map(|rest| (value, rest)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_between_other_fields() {
        // 1: 5, 9: 3 bytes, 2: 300, 4: fixed32, 3: the largest number.
        let mut bytes = vec![0x08, 5, 0x4a, 3, 1, 2, 3, 0x10, 0xac, 0x02, 0x25, 0, 0, 0, 0, 0x18];
        bytes.extend([0xff; 9]);
        bytes.push(1);
        assert_eq!(numbers::<3>(&bytes, true), Ok([Some(5), Some(300), Some(u64::MAX)]));
        assert_eq!(numbers::<1>(&bytes, true), Ok([Some(5)]));
        for length in 0..bytes.len() {
            let head = numbers::<3>(&bytes[..length], false).unwrap();
            assert!(head[0].is_none_or(|one| one == 5));
            assert!(head[2].is_none());
        }
        assert!(numbers::<3>(&bytes[..5], true).is_err());
        assert!(
            numbers::<1>(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], true).is_err()
        );
        assert!(numbers::<1>(&[0x0b], true).is_err(), "groups are unknown");
    }
}
