//! The hash of a key, by which it is in a partition of a group.
//!
//! It is the one that PostgreSQL has for its own hash indexes and hash partitions,
//! `hashtext`, so that a server finds out in a few nanoseconds which partition an event
//! is in, and nothing has to be stored for that or computed when an event is published:
//! SHA-256 took longer than all else that a fetch does for a row. It is the function
//! that Bob Jenkins calls `lookup3`, with start values of PostgreSQL's own; the same in
//! all of its versions, because partitions on disk depend on it. Only what computers
//! are that count from the lowest byte on: on others a server computes something else,
//! and is alone in what it decides.

/// What each of the three parts of the state begins with, besides the length.
const START: u32 = 0x9e37_79b9_u32.wrapping_add(3_923_095);

/// The hash.
pub(super) fn of(key: &[u8]) -> u32 {
    // Longer keys differ in their bytes.
    #[expect(clippy::cast_possible_truncation, reason = "only the lower bits are mixed in")]
    let start = START.wrapping_add(key.len() as u32);
    let mut state = [start; 3];
    let (blocks, rest) = key.as_chunks::<12>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (part, word) in state.iter_mut().zip(words) {
            *part = part.wrapping_add(u32::from_le_bytes(*word));
        }
        mix(&mut state);
    }
    // At most eleven bytes are left: the lowest byte of the last part is the length's.
    let mut last = [0_u8; 12];
    for (index, byte) in rest.iter().enumerate() {
        let place = if index < 8 { index } else { index + 1 };
        if let Some(slot) = last.get_mut(place) {
            *slot = *byte;
        }
    }
    let (words, _) = last.as_chunks::<4>();
    for (part, word) in state.iter_mut().zip(words) {
        *part = part.wrapping_add(u32::from_le_bytes(*word));
    }
    finish(state)
}

/// Mixes a block into the state, reversibly.
fn mix(state: &mut [u32; 3]) {
    let [mut a, mut b, mut c] = *state;
    for [first, second, third] in [[4, 6, 8], [16, 19, 4]] {
        a = a.wrapping_sub(c) ^ c.rotate_left(first);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(second);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(third);
        b = b.wrapping_add(a);
    }
    *state = [a, b, c];
}

/// Has each bit of the state change the result.
fn finish([mut a, mut b, mut c]: [u32; 3]) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SELECT hashtext(key)::bigint & 4294967295`, of a PostgreSQL 15.
    #[test]
    fn it_is_what_postgresql_says() {
        for (key, hash) in [
            ("", 2_817_148_525),
            ("a", 1_075_015_857),
            ("abc", 3_509_578_647),
            ("abcd", 3_901_032_492),
            ("abcdefgh", 2_334_039_091),
            ("abcdefghijk", 2_811_163_603),
            ("abcdefghijkl", 2_708_880_084),
            ("customer-1234", 2_971_567_052),
            (
                "\u{e4}\u{f6}\u{fc}\u{20ac}\u{e4}\u{f6}\u{fc}\u{20ac}\u{e4}\u{f6}\u{fc}\u{20ac}\u{e4}\u{f6}\u{fc}\u{20ac}\u{e4}\u{f6}\u{fc}\u{20ac}",
                3_253_519_460,
            ),
        ] {
            assert_eq!(of(key.as_bytes()), hash, "{key}");
        }
    }
}
