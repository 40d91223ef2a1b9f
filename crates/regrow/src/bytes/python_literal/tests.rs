use super::*;

fn read(text: &str) -> Literal {
    parse(text, LiteralOptions::default()).unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

#[test]
fn reads_a_header() {
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
    let Literal::Dict(entries) = read(text) else { panic!() };
    assert_eq!(entries[2].1, Literal::Tuple(vec![Literal::Int(3), Literal::Int(4)]));
}
