//! Finds equal shardings among many.

use super::Sharding;

const LOOKED_THROUGH_MAX: usize = 32;

/// Numbers for shardings. Thousands of leaves share a few shardings, so callers compute their data
/// only once for each number.
#[derive(Debug, Default)]
pub struct DistinctShardings<'a>(Vec<&'a Sharding>);

impl<'a> DistinctShardings<'a> {
    /// The number of a sharding. A sharding that is not among the recent ones gets the next number.
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
