use regrow::Pytree;

#[derive(Pytree)]
union Either {
    a: f32,
    b: u32,
}

#[derive(Pytree)]
enum Never {}

fn main() {}
