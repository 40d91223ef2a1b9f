use regrow::Pytree;

struct Device(u32);

#[derive(Pytree)]
struct Model {
    weights: Vec<f32>,
    #[pytree(skip)]
    device: Device,
}

fn main() {}
