use proptest::prelude::*;
use serde_json::json;

use super::*;

fn step(number: u64, seconds: f64, loss: Option<f64>) -> StepFacts {
    let metrics = loss.map(|loss| json!({"eval": {"loss": loss}, "flat/name": loss}));
    let metrics = metrics.and_then(|metrics| metrics.as_object().cloned()).unwrap_or_default();
    StepFacts { number, seconds: Some(seconds), metrics, ..StepFacts::default() }
}

/// Steps 10, 20, … 100, one every 60 seconds. The loss falls until step 50 and then rises. Step 70
/// has no loss.
fn run() -> Vec<StepFacts> {
    (1..=10)
        .map(|at| {
            let loss = (at as f64 - 5.0).abs();
            step(at * 10, at as f64 * 60.0, (at != 7).then_some(loss))
        })
        .collect()
}

fn left(keep: &Keep) -> Vec<u64> {
    let steps = run();
    let gone = to_delete(&steps, keep);
    steps.iter().map(|step| step.number).filter(|number| !gone.contains(number)).collect()
}

fn best_of(metric: &str, mode: BestMode, count: usize) -> Keep {
    Keep::Best(Best { metric: metric.to_owned(), mode, count })
}

#[test]
fn each_policy_by_itself() {
    assert_eq!(left(&Keep::All).len(), 10);
    assert_eq!(left(&Keep::Latest(3)), [80, 90, 100]);
    assert_eq!(left(&Keep::EverySteps(40)), [40, 80, 100]);
    // The first list has the steps nearest to 0, 30, 60, 90 and 120. The second has the steps
    // nearest to 0, 40, 80 and 120. Steps 20, 60 and 100 are in the middle between two multiples.
    assert_eq!(left(&Keep::ClosestSteps(30)), [10, 30, 60, 90, 100]);
    assert_eq!(left(&Keep::ClosestSteps(40)), [10, 40, 80, 100]);
    // Steps 20 and 30 are equally near to 25, and 70 and 80 to 75. The newer steps stay.
    assert_eq!(left(&Keep::ClosestSteps(25)), [10, 30, 50, 80, 100]);
    assert_eq!(left(&Keep::ClosestSteps(7)).len(), 10);
    assert_eq!(left(&Keep::EverySeconds(150.0)), [10, 40, 70, 100]);
    assert_eq!(left(&Keep::LatestSeconds(120.0)), [80, 90, 100]);
    assert_eq!(left(&Keep::Steps([20, 55].into())), [20, 100]);
    assert_eq!(left(&Keep::If(KeepIf::new(|step| step.number < 30))), [10, 20, 100]);
    assert_eq!(left(&Keep::Any(vec![Keep::Latest(2), Keep::EverySteps(50)])), [50, 90, 100]);
    assert_eq!(left(&Keep::Any(Vec::new())), [100], "the last good one stays");
}

#[test]
fn the_best_by_a_metric() {
    use BestMode::{Max, Min};
    assert_eq!(left(&best_of("eval/loss", Min, 2)), [50, 60, 70, 100], "the newer of equals");
    assert_eq!(left(&best_of("flat/name", Min, 1)), [50, 70, 100]);
    assert_eq!(left(&best_of("eval/loss", Max, 1)), [70, 100]);
    assert_eq!(left(&best_of("absent", Max, 1)).len(), 10, "a step that cannot be ranked stays");
    let steps = run();
    assert_eq!(best(&steps, "eval/loss", Min).unwrap().number, 50);
    assert_eq!(best(&steps, "absent", Min), None);
    let nan = StepFacts { metrics: json!({"x": null}).as_object().cloned().unwrap(), ..step(1, 0.0, None) };
    assert_eq!(nan.metric("x"), None);
}

#[test]
fn what_is_not_ranked_neither_counts_nor_goes() {
    let mut steps = run();
    steps[9].is_damaged = true;
    steps[8].is_other = true;
    steps[1].is_leased = true;
    assert_eq!(to_delete(&steps, &Keep::Latest(2)), [10, 30, 40, 50, 60], "70 and 80 are the two that count");
    assert_eq!(best(&steps, "eval/loss", BestMode::Max).unwrap().number, 10, "100 would be, and is damaged");
    steps.iter_mut().for_each(|step| step.is_damaged = true);
    assert_eq!(to_delete(&steps, &Keep::Latest(1)), [0; 0], "where nothing is good, nothing goes");
    assert_eq!(to_delete(&[], &Keep::Latest(1)), [0; 0]);
}

#[test]
fn a_step_that_cannot_be_ranked_is_refused_with_the_names_that_are_there() {
    let metrics = |value: serde_json::Value| value.as_object().cloned().unwrap();
    let keep = Keep::Any(vec![Keep::Latest(1), best_of("val_loss", BestMode::Min, 1)]);
    for good in [json!({"val_loss": 1}), json!({"val_loss": "NaN"}), json!({"val_loss": "-Infinity"})] {
        keep.check_metrics(&metrics(good)).unwrap();
    }
    for (given, found, meant) in [
        (json!({}), "no metrics", None),
        (json!({"val_los": 1}), "val_los", Some("\"val_los\"")),
        (
            json!({"accuracy": 1, "eval": {"val_loss": 2}}),
            "accuracy, eval/val_loss",
            Some("\"eval/val_loss\""),
        ),
        (json!({"val_loss": null, "train_loss": 3}), "train_loss", None),
        (json!({"val_loss": "low"}), "no metrics", None),
        (json!({"val_loss": {"mean": 1}}), "val_loss/mean", None),
    ] {
        let error = keep.check_metrics(&metrics(given)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"val_loss\"") && text.contains(found), "{text}");
        assert_eq!(text.contains("did you mean"), meant.is_some(), "{text}");
        assert!(meant.is_none_or(|meant| text.contains(meant)), "{text}");
    }
    Keep::Latest(1).check_metrics(&Map::new()).unwrap();
}

#[test]
fn policies_are_said_in_json() {
    let text =
        r#"{"any": [{"latest": 2}, {"best": {"metric": "eval/loss", "mode": "min"}}, {"every_steps": 40}]}"#;
    assert_eq!(left(&Keep::from_json(text).unwrap()), [40, 50, 70, 80, 90, 100]);
    assert_eq!(left(&Keep::from_json(r#""all""#).unwrap()).len(), 10);
    for text in [
        r#"{"latest": 0}"#,
        r#"{"every_steps": 0}"#,
        r#"{"closest_steps": 0}"#,
        r#"{"any": [{"every_seconds": -1}]}"#,
        r#"{"best": {"metric": "", "mode": "min"}}"#,
        r#"{"best": {"metric": "x", "mode": "least"}}"#,
        r#"{"best": {"metric": "x", "mode": "min", "count": 0}}"#,
        "{}",
    ] {
        assert!(Keep::from_json(text).is_err(), "{text}");
    }
}

fn any_step() -> impl Strategy<Value = StepFacts> {
    (
        0_u64..60,
        proptest::option::of(0.0..1000.0),
        proptest::option::of(0_u8..5),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(number, seconds, loss, is_leased, is_damaged, is_other)| StepFacts {
            seconds,
            is_leased,
            is_damaged,
            is_other,
            ..step(number, 0.0, loss.map(f64::from))
        })
}

fn any_policy() -> impl Strategy<Value = Keep> {
    let simple = prop_oneof![
        Just(Keep::All),
        (1_usize..5).prop_map(Keep::Latest),
        (1_usize..4, any::<bool>()).prop_map(|(count, is_min)| {
            best_of("eval/loss", if is_min { BestMode::Min } else { BestMode::Max }, count)
        }),
        (1_u64..20).prop_map(Keep::EverySteps),
        (1_u64..20).prop_map(Keep::ClosestSteps),
        (1_u64..5).prop_map(|rest| Keep::If(KeepIf::new(move |step| step.number % 5 == rest))),
        (0.0..300.0).prop_map(Keep::EverySeconds),
        (0.0..300.0).prop_map(Keep::LatestSeconds),
        proptest::collection::btree_set(0_u64..60, 0..5).prop_map(Keep::Steps),
    ];
    proptest::collection::vec(simple, 0..4).prop_map(Keep::Any)
}

proptest! {
    #[test]
    fn promises_hold_for_every_policy(
        steps in proptest::collection::vec(any_step(), 0..40),
        keep in any_policy(),
    ) {
        let mut steps = steps;
        steps.sort_by_key(|step| step.number);
        steps.dedup_by_key(|step| step.number);
        let gone = to_delete(&steps, &keep);
        let is_gone = |step: &&StepFacts| gone.contains(&step.number);
        // The newest ranked step stays, and all steps that are read or not ranked.
        let ranked = |step: &&StepFacts| !step.is_damaged && !step.is_other;
        prop_assert!(steps.iter().rfind(ranked).is_none_or(|newest| !is_gone(&newest)));
        prop_assert!(steps.iter().filter(is_gone).all(|step| ranked(&step) && !step.is_leased));
        // Only existing steps are deleted, and each only once.
        prop_assert!(gone.is_sorted() && gone.iter().all(|number| steps.iter().any(|step| step.number == *number)));
        // If one policy alone keeps a step, several policies together keep it too.
        if let Keep::Any(several) = &keep {
            for one in several {
                let alone = to_delete(&steps, one);
                prop_assert!(gone.iter().all(|number| alone.contains(number)), "{one:?}");
            }
        }
        // A second call deletes nothing more.
        let left: Vec<StepFacts> = steps.iter().filter(|step| !is_gone(step)).cloned().collect();
        prop_assert_eq!(to_delete(&left, &keep), Vec::<u64>::new());
        // The order of the given steps does not matter.
        steps.reverse();
        prop_assert_eq!(to_delete(&steps, &keep), gone);
    }
}
