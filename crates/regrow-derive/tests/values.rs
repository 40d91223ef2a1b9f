use regrow::Pytree;
#[derive(Pytree, Debug, PartialEq, Clone)]
struct Model { kernel: Vec<[f32; 2]>, #[pytree(skip)] name: String }
#[derive(Pytree, Debug, PartialEq, Clone)]
enum E<T> { Off, Rate(f32), Size(u8, T), Range { low: f32, high: Option<T> } }
#[test]
fn x() {
    let m = Model { kernel: vec![[1.0, 2.0]], name: "a".into() };
    let t = m.to_tree().unwrap().into_owned();
    assert_eq!(Model::from_tree(t).unwrap().kernel, m.kernel);
    for e in [E::Off, E::Rate(1.0), E::Size(1, 2_i64), E::Range { low: 1.0, high: None }] {
        let t = e.to_tree().unwrap().into_owned();
        assert_eq!(E::from_tree(t.clone()).unwrap(), e);
    }
}
