//! A preview of a file: the bytes before and between its array data. A dry run uses it to find the
//! layout that would recognise the file.

/// The bytes of a file before and between its array data. The array data reads as zeros and takes
/// no memory.
#[derive(Debug, Clone, Default)]
pub struct Preview {
    /// Runs of bytes, each with its offset in the file, in order.
    pieces: Vec<(u64, Vec<u8>)>,
    len_bytes: u64,
}

impl Preview {
    /// Appends these bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.pieces.push((self.len_bytes, bytes.to_vec()));
        self.data(bytes.len() as u64);
    }

    /// Appends array data of this length, without the data.
    pub fn data(&mut self, len_bytes: u64) {
        self.len_bytes = self.len_bytes.saturating_add(len_bytes);
    }

    /// Length of the file up to the last appended byte.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// At most `len_max_bytes` from `offset_bytes` on; fewer at the end of the file.
    pub fn read_at(&self, offset_bytes: u64, len_max_bytes: u64) -> Vec<u8> {
        let end = offset_bytes.saturating_add(len_max_bytes).min(self.len_bytes);
        let mut out = vec![0; end.saturating_sub(offset_bytes) as usize];
        for (start, bytes) in &self.pieces {
            let skipped = offset_bytes.saturating_sub(*start) as usize;
            let at = start.saturating_sub(offset_bytes) as usize;
            let (Some(from), Some(to)) = (bytes.get(skipped..), out.get_mut(at..)) else { continue };
            let len = from.len().min(to.len());
            if let (Some(from), Some(to)) = (from.get(..len), to.get_mut(..len)) {
                to.copy_from_slice(from);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_as_the_file_would(
            pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(1_u8.., 0..9)), 0..6),
            offset in 0_usize..60,
            len in 0_usize..60,
        ) {
            let (mut preview, mut file) = (Preview::default(), Vec::new());
            for (is_data, bytes) in &pieces {
                if *is_data {
                    preview.data(bytes.len() as u64);
                    file.resize(file.len() + bytes.len(), 0);
                } else {
                    preview.bytes(bytes);
                    file.extend(bytes);
                }
            }
            prop_assert_eq!(preview.len_bytes(), file.len() as u64);
            let expected: Vec<u8> = file.into_iter().skip(offset).take(len).collect();
            prop_assert_eq!(preview.read_at(offset as u64, len as u64), expected);
        }
    }
}
