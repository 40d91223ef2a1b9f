use regrow::Pytree;

#[derive(Pytree)]
struct Model {
    weights: Vec<f32>,
    #[pytree(rename = "weights")]
    other: Vec<f32>,
}

fn main() {}
