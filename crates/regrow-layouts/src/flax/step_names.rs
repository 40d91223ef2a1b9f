//! The names of steps: `<prefix><step>`.
//!
//! A `-` is the sign of the number if the character before it is neither a letter nor a digit.
//! Source: flax `training/checkpoints.py`.

pub(super) const PREFIX: &str = "checkpoint_";

/// The prefix and the step in a name; `None` for a name without a number.
pub fn split(name: &str) -> Option<(&str, f64)> {
    if let Some(step) = name.strip_prefix(PREFIX).and_then(number) {
        return Some((PREFIX, step));
    }
    let mut before = None;
    for (at, c) in name.char_indices() {
        let is_inside_number = before.is_some_and(|c: char| c.is_ascii_digit());
        let is_sign = c == '-' && before.is_some_and(|c: char| !c.is_alphanumeric());
        before = Some(c);
        if at == 0 || is_inside_number || !(c.is_ascii_digit() || is_sign) {
            continue;
        }
        let (prefix, rest) = name.split_at_checked(at)?;
        if let Some(step) = number(rest) {
            return Some((prefix, step));
        }
    }
    None
}

/// Parses a number as Python prints it: `7`, `-2`, `10.5`, `1e-05`.
pub(super) fn number(text: &str) -> Option<f64> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once('e').map_or((unsigned, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    let is_number = digits(whole)
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)));
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_prefix_and_a_number() {
        for (name, expected) in [
            ("checkpoint_10", Some(("checkpoint_", 10.0))),
            ("checkpoint_-1", Some(("checkpoint_", -1.0))),
            ("checkpoint_1e-05", Some(("checkpoint_", 1e-5))),
            ("v2_gen_0.5", Some(("v2_gen_", 0.5))),
            ("model-10", Some(("model-", 10.0))),
            ("model7", Some(("model", 7.0))),
            ("checkpoint_tmp", None),
            ("checkpoint_99.bak", None),
            ("10", None),
            ("checkpoint_1_gda", None),
            ("checkpoint_", None),
        ] {
            assert_eq!(split(name), expected, "{name}");
        }
    }
}
