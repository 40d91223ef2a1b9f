//! The two 16-bit floats, to and from float32 and float64.
//!
//! The functions have no branches, so that the compiler makes vector instructions of a loop on any
//! processor. The results have the same bits as in NumPy (`float16`) and ml_dtypes (`bfloat16`),
//! also NaN payloads.
//!
//! ```text
//! float16    S EEEEE MMMMMMMMMM       bfloat16   S EEEEEEEE MMMMMMM (the upper half of a float32)
//! ```

const INFINITY: u32 = 0x7f80_0000;

/// Converts a bfloat16 to float32. Exact.
pub(super) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest bfloat16, ties to even. NaN becomes the quiet NaN with the same sign.
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 & 0x8000 | 0x7fc0;
    (if value.is_nan() { nan } else { rounded }) as u16
}

/// Converts a float16 to float32. Exact.
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The multiplication moves the exponent's bias from 15 to 127, and makes subnormals normal.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23)).to_bits();
    let special = magnitude | INFINITY;
    let is_special = bits & 0x7c00 == 0x7c00;
    f32::from_bits(u32::from(bits & 0x8000) << 16 | if is_special { special } else { finite })
}

/// Converts a float16 to float64. Exact; a NaN keeps its payload.
pub(super) fn f16_to_f64(bits: u16) -> f64 {
    let special = u64::from(bits & 0x8000) << 48 | 0x7ff0 << 48 | u64::from(bits & 0x3ff) << 42;
    if bits & 0x7c00 == 0x7c00 { f64::from_bits(special) } else { f16_to_f32(bits).into() }
}

/// Rounds to the nearest float16, ties to even.
pub(super) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Below the smallest normal value, adding 0.5 rounds to steps of 2^-24 and leaves their number
    // in the low bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let nan = 0x7c00 | (magnitude >> 13 & 0x3ff).max(1);
    let finite = if magnitude < (127 - 14) << 23 { subnormal } else { normal.min(0x7c00) };
    (bits >> 16 & 0x8000 | if magnitude > INFINITY { nan } else { finite }) as u16
}

/// Rounds a float64 to the nearest float16 in one step, ties to even.
pub(super) fn f64_to_f16(value: f64) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & !(1 << 63);
    let code = if magnitude > 0x7ff0 << 48 {
        0x7c00 | ((magnitude >> 42) as u32 & 0x3ff).max(1)
    } else if magnitude < (1023 - 14) << 52 {
        // As in `f32_to_f16`, but with 2^28, whose float64 steps are 2^-24.
        let steps = f64::from_bits(magnitude) + 268_435_456.0;
        steps.to_bits() as u32
    } else {
        let odd = magnitude >> 42 & 1;
        let rounded = (magnitude - ((1023 - 15) << 52) + (1 << 41) - 1 + odd) >> 42;
        rounded.min(0x7c00) as u32
    };
    ((bits >> 48 & 0x8000) as u32 | code) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_half_on_every_pattern() {
        for bits in 0..=u16::MAX {
            let wide = half::f16::from_bits(bits);
            if wide.is_nan() {
                assert!(f16_to_f32(bits).is_nan() && f16_to_f64(bits).is_nan());
            } else {
                assert_eq!(f16_to_f32(bits).to_bits(), wide.to_f32().to_bits());
                assert_eq!(f16_to_f64(bits).to_bits(), wide.to_f64().to_bits());
            }
            assert_eq!(f32_to_f16(f16_to_f32(bits)), bits);
            assert_eq!(f64_to_f16(f16_to_f64(bits)), bits);
        }
    }

    #[test]
    fn rounds_as_half_does() {
        let mut bits = 0_u32;
        while let Some(next) = bits.checked_add(65_521) {
            let value = f32::from_bits(bits);
            if !value.is_nan() {
                assert_eq!(f32_to_f16(value), half::f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(f64_to_f16(value.into()), half::f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits(), "{value:e}");
            }
            bits = next;
        }
    }
}
