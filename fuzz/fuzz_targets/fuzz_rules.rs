//! Rules of a conversion: the file, the globs and the expressions in it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regrow::engine::ConvertRules;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(rules) = ConvertRules::parse(text) {
        let _ = rules.to_layout();
        let _ = rules.options();
    }
});
