//! Checksums as hex digits, for use with serde.

/// One 32-bit number, as eight hex digits.
pub mod number {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    /// Writes the number as hex digits.
    #[inline]
    pub fn serialize<S: Serializer>(value: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{value:08x}"))
    }

    /// Reads the number from hex digits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(from)?;
        u32::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

/// Many 32-bit numbers in one text, eight hex digits each.
pub mod list {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    const VALUES: [u8; 256] = {
        let mut values = [255; 256];
        let mut digit = 0;
        while digit < 16 {
            values[DIGITS[digit] as usize] = digit as u8;
            values[DIGITS[digit].to_ascii_uppercase() as usize] = digit as u8;
            digit += 1;
        }
        values
    };

    /// Writes all numbers as one text of hex digits.
    pub fn serialize<S: Serializer>(values: &[u32], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(values.len() * 8);
        for value in values {
            let digit = |shift: u32| char::from(DIGITS[(value >> shift & 15) as usize]);
            text.extend([28, 24, 20, 16, 12, 8, 4, 0].map(digit));
        }
        to.serialize_str(&text)
    }

    /// Reads all numbers from one text of hex digits. A checkpoint has a checksum for each 32 KiB,
    /// and a table of digits is much faster than parsing each number.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(from)?;
        let (parts, rest) = text.as_bytes().as_chunks::<8>();
        let mut all = 0;
        let parse = |part: &[u8; 8]| {
            part.iter().fold(0, |value: u32, &byte| {
                let digit = VALUES[byte as usize];
                all |= digit;
                value << 4 | u32::from(digit & 15)
            })
        };
        let values = parts.iter().map(parse).collect();
        if all > 15 || !rest.is_empty() {
            return Err(D::Error::custom("a checksum list is 8 hex digits a block"));
        }
        Ok(values)
    }
}

/// Many digests of 32 bytes in one text, 64 hex digits each.
pub mod digests {
    use blake3::Hash;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    /// Writes all digests as one text of hex digits.
    pub fn serialize<S: Serializer>(values: &[Hash], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(values.len() * 64);
        values.iter().for_each(|value| text.push_str(&value.to_hex()));
        to.serialize_str(&text)
    }

    /// Reads all digests from one text of hex digits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Hash>, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(from)?;
        let (parts, rest) = text.as_bytes().as_chunks::<64>();
        let values = parts.iter().map(Hash::from_hex).collect::<Result<_, _>>().map_err(D::Error::custom)?;
        match rest.is_empty() {
            true => Ok(values),
            false => Err(D::Error::custom("a list of digests is 64 hex digits a block")),
        }
    }
}

/// The `N` bytes for a text of lower-case hex digits; `None` if the text has another length or
/// other characters.
pub fn fixed<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::list;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct List(#[serde(with = "list")] Vec<u32>);

    #[test]
    fn checksum_lists_are_eight_digits_each() {
        let list = List(vec![0, 0x1b2e_9a40, u32::MAX, 7]);
        let json = serde_json::to_string(&list).unwrap();
        assert_eq!(json, "\"000000001b2e9a40ffffffff00000007\"");
        assert_eq!(serde_json::from_str::<List>(&json).unwrap(), list);
        assert_eq!(serde_json::from_str::<List>("\"1B2E9A40\"").unwrap(), List(vec![0x1b2e_9a40]));
        assert_eq!(serde_json::from_str::<List>("\"\"").unwrap(), List(Vec::new()));
        for bad in ["\"1b2e9a4\"", "\"1b2e9a4g\"", "\"+b2e9a40\"", "\"1b2e9a40 \"", "\"0000000\u{e9}\""] {
            assert!(serde_json::from_str::<List>(bad).is_err(), "{bad}");
        }
    }
}
