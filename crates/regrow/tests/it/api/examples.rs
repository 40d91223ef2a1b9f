//! Runs the example of own Rust types.

#[expect(dead_code, reason = "its main is not called here")]
#[path = "../../../examples/derive.rs"]
mod derive;

#[test]
fn a_training_state_of_rust_types_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (step, refusal) = derive::run(&folder.path().join("x")).unwrap();
    assert_eq!(step, 100);
    assert!(refusal.contains("does not fit the value in 7 places"), "{refusal}");
}
