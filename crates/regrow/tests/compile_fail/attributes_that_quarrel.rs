use regrow::Pytree;

#[derive(Pytree)]
struct Skipped {
    #[pytree(skip, rename = "w")]
    weights: Vec<f32>,
}

#[derive(Pytree)]
struct Flat(#[pytree(flatten)] Vec<f32>, i64);

fn main() {}
