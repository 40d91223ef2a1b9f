//! A model of candle: its tensors are leaves, trained, saved, restored and trained on. `make
//! example-candle`
//!
//! Candle's own `Tensor` is no type of this program, and regrow knows nothing of candle. The module
//! `tensor` below is all that stands between them: what a tensor is made of, and how it is put
//! together again. The checkpoint is an Orbax checkpoint and safetensors files at once, so JAX and
//! PyTorch read it, too.

use candle_core::{DType, Device, Tensor};
use regrow::{Pytree, SaveOptions};

/// All that the next step depends on.
#[derive(Pytree)]
struct Training {
    step: u64,
    layers: Vec<Linear>,
    /// On which device the model lives: of this run, not of the checkpoint.
    #[pytree(skip, default = "cpu")]
    device: Device,
}

#[derive(Pytree)]
struct Linear {
    #[pytree(with = "tensor")]
    weight: Tensor,
    #[pytree(with = "tensor")]
    bias: Tensor,
}

fn cpu() -> Device {
    Device::Cpu
}

/// Candle's tensors as arrays of regrow, bit for bit.
mod tensor {
    use candle_core::{DType, Device, Error, Result, Tensor};
    use regrow::array::{Array, Dtype, Shape};

    /// The dtypes that both have.
    const DTYPES: [(DType, Dtype); 7] = [
        (DType::U8, Dtype::UInt8),
        (DType::U32, Dtype::UInt32),
        (DType::I64, Dtype::Int64),
        (DType::BF16, Dtype::BFloat16),
        (DType::F16, Dtype::Float16),
        (DType::F32, Dtype::Float32),
        (DType::F64, Dtype::Float64),
    ];

    pub fn to_pytree(tensor: &Tensor) -> Array {
        // No error can be given back here, and none comes of a tensor in memory of one of these
        // dtypes.
        array_of(tensor).unwrap_or_else(|error| panic!("a tensor cannot be saved: {error}"))
    }

    fn array_of(tensor: &Tensor) -> Result<Array> {
        let known = DTYPES.iter().find(|(theirs, _)| *theirs == tensor.dtype());
        let (_, dtype) =
            known.ok_or_else(|| Error::msg(format!("{:?} has no counterpart", tensor.dtype())))?;
        let mut data = Vec::with_capacity(tensor.elem_count() * tensor.dtype().size_in_bytes());
        tensor.write_bytes(&mut data)?;
        let dims: Vec<u64> = tensor.dims().iter().map(|&dim| dim as u64).collect();
        let shape = Shape::new(dims).map_err(Error::wrap)?;
        Array::new(*dtype, shape, data.into()).map_err(Error::wrap)
    }

    pub fn from_pytree(array: Array) -> Result<Tensor> {
        let known = DTYPES.iter().find(|(_, ours)| *ours == array.dtype());
        let (dtype, _) =
            known.ok_or_else(|| Error::msg(format!("candle has no {}", array.dtype().name())))?;
        let dims: Vec<usize> = array.shape().dims().iter().map(|&dim| dim as usize).collect();
        let data = array.to_c_order().map_err(Error::wrap)?;
        Tensor::from_raw_buffer(&data, *dtype, &dims, &Device::Cpu)
    }
}

impl Training {
    fn new(device: Device) -> candle_core::Result<Self> {
        let layer = |inputs: usize, outputs: usize, dtype| -> candle_core::Result<Linear> {
            let weight = Tensor::arange(0f32, (inputs * outputs) as f32, &device)?;
            let weight = ((weight.reshape((outputs, inputs))? / 100.0)?.sin()? * 0.5)?.to_dtype(dtype)?;
            Ok(Linear { weight, bias: Tensor::zeros(outputs, dtype, &device)? })
        };
        let layers = vec![layer(4, 8, DType::F32)?, layer(8, 1, DType::F32)?];
        Ok(Self { step: 0, layers, device })
    }

    /// A step of gradient descent: learn the sum of four numbers. The data follows from the step.
    fn train(&mut self) -> candle_core::Result<f32> {
        let x = (Tensor::arange(0f32, 64f32, &self.device)? + self.step as f64)?.cos()?.reshape((16, 4))?;
        let y = x.sum_keepdim(1)?;
        let vars: Vec<candle_core::Var> = self
            .layers
            .iter()
            .flat_map(|layer| [&layer.weight, &layer.bias])
            .map(candle_core::Var::from_tensor)
            .collect::<candle_core::Result<_>>()?;
        let hidden = x.matmul(&vars[0].t()?)?.broadcast_add(&vars[1])?.tanh()?;
        let found = hidden.matmul(&vars[2].t()?)?.broadcast_add(&vars[3])?;
        let loss = (found - y)?.sqr()?.mean_all()?;
        let gradients = loss.backward()?;
        let mut updated = Vec::new();
        for var in &vars {
            let gradient = gradients.get(var).ok_or_else(|| candle_core::Error::msg("no gradient"))?;
            updated.push((var.as_tensor() - (gradient * 0.05)?)?.detach());
        }
        let mut updated = updated.into_iter();
        for layer in &mut self.layers {
            if let (Some(weight), Some(bias)) = (updated.next(), updated.next()) {
                (layer.weight, layer.bias) = (weight, bias);
            }
        }
        self.step += 1;
        loss.to_scalar()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let path = folder.join("regrow_candle_example");

    let mut whole = Training::new(Device::Cpu)?;
    for _ in 0..50 {
        whole.train()?;
    }
    regrow::save_with(&path, &whole, &SaveOptions { overwrite: true, ..SaveOptions::default() })?;
    for leaf in regrow::open(&path)?.paths() {
        println!("saved {leaf}");
    }

    let mut resumed: Training = regrow::load(&path)?;
    let mut losses = (0.0, 0.0);
    for _ in 0..50 {
        losses = (whole.train()?, resumed.train()?);
    }
    println!("step {}: loss {:.6}; resumed: {:.6}", whole.step, losses.0, losses.1);
    let same = whole.layers.iter().zip(&resumed.layers).all(|(one, other)| {
        tensor::to_pytree(&one.weight).to_c_order().ok() == tensor::to_pytree(&other.weight).to_c_order().ok()
    });
    if !same || whole.step != resumed.step {
        return Err("the resumed training has other weights".into());
    }
    println!("the same weights to the bit");
    std::fs::remove_dir_all(&path)?;
    Ok(())
}
