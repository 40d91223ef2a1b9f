use regrow::Pytree;

struct Handle(*mut u8);

#[derive(Pytree)]
struct Model {
    weights: Vec<f32>,
    handle: Handle,
}

fn main() {}
