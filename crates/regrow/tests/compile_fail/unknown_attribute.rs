use regrow::Pytree;

#[derive(Pytree)]
struct Model {
    #[pytree(skip_serializing)]
    weights: Vec<f32>,
}

fn main() {}
