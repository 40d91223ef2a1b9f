//! Maps whose keys are addresses of Python objects (classes, containers on the path). The caller
//! keeps the objects alive.
//!
//! No attacker can choose addresses, so the hash only has to spread them. It must be fast: a tree
//! of a hundred thousand leaves hashes as many addresses.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub type AddressMap<V> = HashMap<usize, V, BuildHasherDefault<AddressHasher>>;

pub type AddressSet = HashSet<usize, BuildHasherDefault<AddressHasher>>;

/// Spreads the bits of an address over the whole hash.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(usize::from(byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // Fibonacci hashing mixes the high bits best. The shift copies the high bits to the low
        // bits, because the hash table uses both ends.
        let spread = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}
