//! Shardings as Orbax' JSON says them: read, written again, and asked for what each device holds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regrow::array::Shape;
use regrow::sharding::Sharding;
use serde_json::Value;

/// Devices whose parts are looked at.
const DEVICES_MAX: u64 = 64;

fuzz_target!(|input: &[u8]| {
    let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
    let sharding = Sharding::from_json(value.clone());
    assert_eq!(sharding.to_json(), value);
    for dims in [&[][..], &[16], &[8, 12], &[4, 0, 3]] {
        let Ok(layout) = sharding.layout(&Shape::new(dims).unwrap()) else { continue };
        for position in 0..layout.device_count().min(DEVICES_MAX) {
            let _ = (layout.device(position), layout.region(position), layout.replica(position));
        }
    }
});
