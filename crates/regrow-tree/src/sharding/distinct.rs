//! Finds equal shardings among many.

use super::Sharding;

/// How many are looked through for one that comes again.
const LOOKED_THROUGH_MAX: usize = 32;

/// Numbers for shardings. Thousands of leaves share a few: what is made of one is made once.
#[derive(Debug, Default)]
pub struct DistinctShardings<'a>(Vec<&'a Sharding>);

impl<'a> DistinctShardings<'a> {
    /// The number of a sharding; the next number for one that was not met lately.
    pub fn number(&mut self, sharding: &'a Sharding) -> usize {
        let is_it = |known: &&Sharding| std::ptr::eq(*known, sharding) || **known == *sharding;
        // Search from the latest back, since neighbours mostly share a sharding.
        if let Some(back) = self.0.iter().rev().take(LOOKED_THROUGH_MAX).position(is_it) {
            return self.0.len() - 1 - back;
        }
        self.0.push(sharding);
        self.0.len() - 1
    }
}
