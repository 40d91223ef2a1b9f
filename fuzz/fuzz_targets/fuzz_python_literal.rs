//! Python literals: what is read prints as text that reads as the same again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regrow_base::bytes::python_literal::{LiteralOptions, parse};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = parse(text, LiteralOptions { python2_longs: true, numpy_ints: true });
    let Ok(value) = parse(text, LiteralOptions::default()) else { return };
    let printed = value.repr();
    // Python prints signs of zeros in complex numbers that no literal can say.
    if printed.contains('j') {
        return;
    }
    // `Ellipsis` and infinite floats print as names.
    if let Ok(again) = parse(&printed, LiteralOptions::default()) {
        assert_eq!(again.repr(), printed);
    }
});
