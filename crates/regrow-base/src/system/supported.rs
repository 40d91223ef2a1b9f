// This file refuses the machines that regrow is not built for. `tests/it/source/platforms.rs`
// compiles this file alone for such machines.

#[cfg(target_endian = "big")]
compile_error!(
    "regrow does not build for big-endian machines: arrays lie in memory as they lie in files, which are little-endian"
);

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "regrow builds for machines with addresses of 64 bits alone: lengths and offsets of files are used as lengths in memory"
);
