//! The records of a folder of steps: the pointer, leases, locks. The steps stay as they are.

#![no_main]

mod door;

use std::sync::Once;

use libfuzzer_sys::fuzz_target;
use regrow::manager::Steps;

static STEPS: Once = Once::new();

fuzz_target!(|input: &[u8]| {
    let root = door::folder().join("steps");
    STEPS.call_once(|| {
        for step in 1..4 {
            let from = regrow_testkit::fixtures().join("regrow/early");
            regrow_testkit::copy_folder(&from, &root.join(format!("step_{step}"))).unwrap();
        }
    });
    let mut parts = door::parts(input);
    for name in ["latest.json", "writer.json", "leases/step_2~1", "deleting/1"] {
        door::put(&format!("steps/.regrow/{name}"), parts.next().unwrap());
    }
    let Ok(steps) = Steps::new(&root, None) else { return };
    let _ = (steps.list(), steps.latest(), steps.leased(), steps.find(2), steps.step(3));
    drop(steps.lease(1));
    let _ = regrow::list(&root);
});
