//! Bodies that come packed: unpacked to a limit, and to so many times what came.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use crate::budget::Room;
use crate::refusal::{Reason, Refusal};

/// What comes out may be so many times what came in.
pub const MOST_TIMES: usize = 100;

/// Less than this is never too many times.
const ALWAYS_FINE: usize = 64 << 10;

/// How much is unpacked at once.
const STEP: usize = 64 << 10;

/// Unpacks a body. Of the room, what comes out takes its part as it comes.
///
/// # Errors
/// For more than `most` bytes or [`MOST_TIMES`] the body, for what is no gzip, and when there is
/// no room.
pub fn inflate(body: &[u8], most: usize, room: &mut Room) -> Result<Vec<u8>, Refusal> {
    let times = body.len().saturating_mul(MOST_TIMES).max(ALWAYS_FINE);
    let most_now = most.min(times);
    let mut unpacked = Vec::new();
    let mut decoder = MultiGzDecoder::new(body);
    loop {
        // One byte more than the limit shows that there is more.
        let step = STEP.min(most_now - unpacked.len() + 1);
        room.grow(step)?;
        unpacked.reserve_exact(step);
        let read = decoder.by_ref().take(step as u64).read_to_end(&mut unpacked).map_err(|error| {
            Refusal::new(
                Reason::InvalidRequest,
                format!(
                    "the body is not gzip as `Content-Encoding` says ({error}): send it as gzip, or without that header"
                ),
            )
        })?;
        if unpacked.len() > most_now {
            return Err(if times < most {
                Refusal::new(
                    Reason::TooLarge,
                    format!(
                        "the body unpacks to more than {MOST_TIMES} times its {} bytes: send it unpacked, or less at once",
                        body.len()
                    ),
                )
                .limit(times)
            } else {
                Refusal::new(
                    Reason::TooLarge,
                    format!(
                        "the body unpacks to more than {most} bytes, which is the most: send less at once"
                    ),
                )
                .limit(most)
            });
        }
        if read < step {
            return Ok(unpacked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::budget::Budget;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Bytes that cannot be packed.
    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 7_u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..bytes).map(next).collect()
    }

    #[test]
    fn what_was_packed_comes_out_and_no_more_than_its_limits() {
        let budget = Budget::new(10 << 20);
        let mut room = budget.take(0).unwrap();
        for bytes in [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP] {
            let whole = noise(bytes);
            assert_eq!(inflate(&gzip(&whole), bytes, &mut room).unwrap(), whole);
            if bytes > 0 {
                let refused = inflate(&gzip(&whole), bytes - 1, &mut room).unwrap_err();
                assert_eq!(
                    (refused.reason, refused.limit),
                    (Reason::TooLarge, Some(bytes as u64 - 1))
                );
            }
        }
        let two = [gzip(b"a"), gzip(b"b")].concat();
        assert_eq!(inflate(&two, 100, &mut room).unwrap(), b"ab");
        assert_eq!(
            inflate(&gzip(&vec![0; ALWAYS_FINE]), 1 << 20, &mut room).unwrap().len(),
            ALWAYS_FINE
        );
    }

    #[test]
    fn a_bomb_costs_a_hundred_times_what_it_is_and_no_more() {
        let bomb = gzip(&vec![0; 64 << 20]);
        let budget = Budget::new(64 << 20);
        let mut room = budget.take(bomb.len()).unwrap();
        let refused = inflate(&bomb, 16 << 20, &mut room).unwrap_err();
        assert_eq!(refused.reason, Reason::TooLarge);
        assert!(refused.detail.contains("100 times"), "{refused}");
        assert!(budget.used() <= bomb.len() * (MOST_TIMES + 1) + 2 * STEP, "{}", budget.used());
    }

    #[test]
    fn what_is_no_gzip_or_ends_early_is_refused_as_that() {
        let budget = Budget::new(1 << 20);
        let mut room = budget.take(0).unwrap();
        let whole = gzip(b"{}");
        let damaged = {
            let mut damaged = gzip(&noise(1_000));
            damaged[500] ^= 1;
            damaged
        };
        for bad in [&b"{}"[..], &whole[..whole.len() - 1], &whole[..5], &damaged] {
            let refused = inflate(bad, 2_000, &mut room).unwrap_err();
            assert_eq!(refused.reason, Reason::InvalidRequest, "{refused}");
        }
        let small = Budget::new(10);
        let refused = inflate(&gzip(&noise(100)), 1_000, &mut small.take(0).unwrap()).unwrap_err();
        assert_eq!(refused.reason, Reason::Busy);
    }
}
