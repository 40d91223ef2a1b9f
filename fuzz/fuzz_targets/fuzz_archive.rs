//! Archives, with the checksums of tar headers and of stored members put right: read as
//! checkpoints, and looked through.

#![no_main]

mod door;

use libfuzzer_sys::fuzz_target;
use regrow_testkit::hostile::{Files, Repair, Sums};

fuzz_target!(|input: &[u8]| {
    let mut files: Files = [("x".to_owned(), input.to_vec())].into();
    Sums::default().put_right(&mut files, Repair::All);
    for name in ["x.tar", "x.zip"] {
        let path = door::put(name, &files["x"]);
        door::open(&path);
        door::open(&path.join("regrow"));
        let _ = regrow::list(&path);
    }
});
