//! temporary
use crate::array::{Dtype, Shape};
use crate::error::Result;
/// temporary
#[derive(Default, Debug)]
pub struct HeaderBuilder {
    metadata: serde_json::Map<String, serde_json::Value>,
    out: serde_json::Map<String, serde_json::Value>,
    at: u64,
}
impl HeaderBuilder {
    /// t
    pub fn new() -> Self {
        Self::default()
    }
    /// t
    pub fn metadata(&mut self, k: &str, v: &str) {
        self.metadata.insert(k.into(), v.into());
    }
    /// t
    pub fn tensor(&mut self, name: &str, dtype: Dtype, shape: &Shape) -> Result<()> {
        let mut dims = shape.dims().to_vec();
        let d = match dtype {
            Dtype::Float32 => "F32",
            Dtype::BFloat16 => "BF16",
            Dtype::Float64 => "F64",
            Dtype::Int64 => "I64",
            Dtype::Int32 => "I32",
            Dtype::UInt32 => "U32",
            _ => {
                dims.push(dtype.size_bytes() as u64);
                "U8"
            }
        };
        let len = shape.len_bytes(dtype)?;
        self.out.insert(
            name.into(),
            serde_json::json!({"dtype": d, "shape": dims, "data_offsets": [self.at, self.at+len]}),
        );
        self.at += len;
        Ok(())
    }
    /// t
    pub fn finish(mut self) -> Result<Vec<u8>> {
        let mut all = serde_json::Map::new();
        all.insert("__metadata__".into(), self.metadata.clone().into());
        all.append(&mut self.out);
        let mut json = serde_json::to_vec(&all).unwrap_or_default();
        while (json.len() + 8) % 4096 != 0 {
            json.push(b' ');
        }
        let mut out = (json.len() as u64).to_le_bytes().to_vec();
        out.extend(json);
        Ok(out)
    }
}
