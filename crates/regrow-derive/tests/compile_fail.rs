//! What the compiler says of a `#[derive(Pytree)]` that cannot be: a sentence that names the way
//! out.
//!
//! `TRYBUILD=overwrite cargo test -p regrow-derive --test compile_fail` writes the messages again.

#[test]
fn mistakes_are_explained() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
