//! The position of each generation in the version tree, computed from generation numbers alone.
//!
//! ```text
//! arity 2, last generation 13:   inline {13}     windows: a child of height 1 ends in  9..=12
//!                                                         a child of height 2 ends in  1..=8
//! ```

/// The arithmetic of the version tree, for arity 2^a.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arity(pub(super) u8);

impl Arity {
    /// The most versions in a list, and the most children of a node.
    pub(super) fn fan_out(self) -> u64 {
        1 << self.0
    }

    pub(super) fn height_max(self) -> u8 {
        63 / self.0 - 1
    }

    /// The first generation of the node of this height that covers generation `last`, which is not
    /// 0.
    pub(super) fn first_generation(self, height: u8, last: u64) -> u64 {
        last - (last - 1) % self.span(height)
    }

    /// The number of generations that a node of this height covers. Heights are at most
    /// [`Arity::height_max`].
    pub(super) fn span(self, height: u8) -> u64 {
        1_u64.checked_shl(u32::from(self.0) * (u32::from(height) + 1)).unwrap_or(u64::MAX)
    }

    /// The highest generation: the tallest tree and one full inline list.
    pub(super) fn generation_max(self) -> u64 {
        self.span(self.height_max()).saturating_add(self.fan_out())
    }

    /// For a manifest whose last generation is `last`: each height from 1 on, with its window
    /// `lo..=hi`. The last generation of a child of this height must lie in the window.
    pub(super) fn windows(self, last: u64) -> Vec<(u8, u64, u64)> {
        let mut windows = Vec::new();
        let mut hi = self.first_generation(0, last) - 1;
        for height in 1..=self.height_max() {
            if hi == 0 {
                break;
            }
            let lo = self.first_generation(height, hi);
            windows.push((height, lo, hi));
            hi = lo - 1;
        }
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirteen_generations_of_arity_two_have_windows_as_described() {
        assert_eq!(Arity(1).windows(13), [(1, 9, 12), (2, 1, 8)]);
        assert_eq!(Arity(4).windows(16), []);
        assert_eq!(Arity(4).windows(17), [(1, 1, 16)]);
        assert_eq!(Arity(1).first_generation(1, 12), 9);
    }

    #[test]
    fn trees_are_as_high_as_sixty_three_bits_are_long() {
        let heights = [(1, 62), (2, 30), (3, 20), (4, 14), (5, 11), (16, 2)];
        for (a, height) in heights {
            assert_eq!(Arity(a).height_max(), height, "{a}");
        }
    }

    #[test]
    fn the_arithmetic_holds_at_its_ends() {
        for a in 1..=16 {
            let arity = Arity(a);
            let last = arity.generation_max();
            let windows = arity.windows(last);
            assert!(windows.len() <= usize::from(arity.height_max()));
            assert!(windows.iter().all(|(_, lo, hi)| lo <= hi));
            assert_eq!(arity.windows(1), []);
        }
    }
}
