//! Damages files for the conformance suite, like bad disks, truncated downloads and attackers.

/// One damaged copy of a file.
#[derive(Debug, Clone)]
pub struct Damage {
    /// A description of the damage, for messages.
    pub what: String,
    /// The damaged bytes.
    pub bytes: Vec<u8>,
}

/// Truncates the file at every length, flips bits of every byte (one bit, and all of them), and
/// writes hostile numbers at every offset. Also appends a byte, and the file to itself. A file
/// longer than `each_max` bytes is damaged only at about `each_max` offsets: half of them are the
/// first offsets, and the others are evenly spread.
pub fn damages(bytes: &[u8], each_max: usize) -> impl Iterator<Item = Damage> + '_ {
    let len = bytes.len();
    // Headers are at the beginning, so the first offsets are always included.
    let spread = move |places: usize| {
        let front = places.min(each_max / 2);
        let step = ((places - front) / (each_max - each_max / 2).max(1)).max(1);
        (0..front).chain((front..places).step_by(step))
    };
    let cuts = spread(len)
        .map(move |at| Damage { what: format!("cut to {at} of {len} bytes"), bytes: slice(bytes, at) });
    let flips = spread(len).flat_map(move |at| {
        [1_u8 << (at % 8), 0xff].map(|mask| {
            let mut damaged = bytes.to_vec();
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= mask;
            }
            Damage { what: format!("byte {at} of {len} xor {mask:#04x}"), bytes: damaged }
        })
    });
    let numbers = spread(len).flat_map(move |at| {
        [(0xff_u8, 4_usize), (0x7f, 8), (0x00, 4)].map(|(byte, count)| {
            let mut damaged = bytes.to_vec();
            damaged.iter_mut().skip(at).take(count).for_each(|to| *to = byte);
            Damage { what: format!("{count} bytes {byte:#04x} from byte {at} of {len} on"), bytes: damaged }
        })
    });
    let more = [("a byte more", vec![0_u8]), ("twice", bytes.to_vec())].map(|(what, tail)| {
        let mut damaged = bytes.to_vec();
        damaged.extend(tail);
        Damage { what: what.to_owned(), bytes: damaged }
    });
    cuts.chain(flips).chain(numbers).chain(more)
}

/// All copies with one flipped bit.
pub fn flipped_bits(bytes: &[u8]) -> impl Iterator<Item = Damage> + '_ {
    (0..8 * bytes.len()).map(move |bit| {
        let (at, mask) = (bit / 8, 1_u8 << (bit % 8));
        let mut damaged = bytes.to_vec();
        if let Some(byte) = damaged.get_mut(at) {
            *byte ^= mask;
        }
        Damage { what: format!("byte {at} of {} xor {mask:#04x}", bytes.len()), bytes: damaged }
    })
}

fn slice(bytes: &[u8], len: usize) -> Vec<u8> {
    bytes.iter().copied().take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_flipped_once() {
        let found: Vec<Vec<u8>> = flipped_bits(&[0, 0]).map(|damage| damage.bytes).collect();
        assert_eq!(found.len(), 16);
        assert_eq!((&found[0], &found[9]), (&vec![1, 0], &vec![0, 2]));
    }

    #[test]
    fn small_files_are_damaged_everywhere_and_large_ones_evenly() {
        let small = [7_u8; 20];
        assert_eq!(damages(&small, 100).count(), 20 + 40 + 60 + 2);
        assert!(damages(&small, 100).all(|damage| damage.bytes != small));
        let large = vec![7_u8; 10_000];
        let count = damages(&large, 100).count();
        assert!((600..700).contains(&count), "{count}");
        assert!(damages(&[], 10).count() == 2);
    }
}
