//! Documents that name other files: the index of safetensors in parts, and `.metadata` of PyTorch's
//! distributed checkpoints.

#![no_main]

mod door;

use libfuzzer_sys::fuzz_target;

const PART: &[u8] = include_bytes!("../../fixtures/safetensors/every_dtype.safetensors");
const PART_OF_TORCH: &[u8] = include_bytes!("../../fixtures/torch/dcp_sharded/__0_0.distcp");

fuzz_target!(|input: &[u8]| {
    let Some((which, document)) = input.split_first() else { return };
    let path = match which % 2 {
        0 => {
            door::put("st/model-00001-of-00002.safetensors", PART);
            door::put("st/model-00002-of-00002.safetensors", PART);
            door::put("st/model.safetensors.index.json", document)
        }
        _ => {
            door::put("dcp/__0_0.distcp", PART_OF_TORCH);
            door::put("dcp/__1_0.distcp", PART_OF_TORCH);
            door::put("dcp/.metadata", document)
        }
    };
    door::open(path.parent().unwrap());
});
