//! Faults: which requests they affect, when, and how.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use super::request::{Op, Target};
use super::text::glob_matches;

/// A rule: the requests that it applies to, the turns at which it strikes, and its effect.
///
/// Every rule counts its matching requests separately. Several rules may strike one request. Their
/// delays add up. If several end the request, the first rule decides.
///
/// As JSON, with every field but `action` optional:
///
/// ```json
/// {"ops": ["put", "upload_part"], "method": "PUT", "key": "*/d/*", "when": {"first": 2},
///  "action": {"refuse": "SlowDown"}, "applied": false}
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    #[serde(default)]
    ops: Vec<Op>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    when: When,
    action: Action,
    #[serde(default)]
    applied: bool,
}

/// The turns at which a fault strikes, counted from 1 over the matching requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Every turn.
    #[default]
    Always,
    /// Only this turn.
    Nth(u64),
    /// This many turns, from the first on.
    First(u64),
    /// All turns after this one.
    After(u64),
    /// Every turn that is a multiple of this number.
    Every(u64),
    /// Each turn with this probability. The seed and the turn decide, so a run can be repeated.
    Chance {
        /// The probability, from 0 to 1.
        probability: f64,
        /// The seed.
        seed: u64,
    },
}

/// The effect of a fault on a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Answers with an error of the protocol.
    Refuse(Refusal),
    /// Answers with any status and error code.
    Status {
        /// The status of the answer.
        status: u16,
        /// The text of `<Code>`.
        code: String,
    },
    /// Answers 200 with an error document, as S3 does when a copy or a completion fails halfway.
    ErrorIn200(Refusal),
    /// Closes the connection without an answer, with a TCP reset.
    Reset,
    /// Announces the whole body, and closes the connection after this many bytes of it.
    TruncateBody(u64),
    /// Inverts the byte at this offset of the body that a read returns or a write stores. An offset
    /// after the end wraps around.
    WrongBytes(u64),
    /// Sends the body in chunks, with a pause before each.
    SlowDrip {
        /// The length of a chunk.
        chunk_bytes: usize,
        /// The pause in milliseconds.
        pause_ms: u64,
    },
    /// Waits for this many milliseconds before the request is processed.
    DelayMs(u64),
    /// Lists the objects before this many last writes; at most 4096 are recorded.
    StaleList(usize),
}

impl Fault {
    /// A fault for all requests. Other methods limit it.
    pub fn new(action: Action) -> Self {
        Self { ops: Vec::new(), method: None, key: None, when: When::Always, action, applied: false }
    }

    /// Answers with an error of the protocol and does nothing else.
    pub fn refuse(refusal: Refusal) -> Self {
        Self::new(Action::Refuse(refusal))
    }

    /// Answers with any status and error code and does nothing else.
    pub fn status(status: u16, code: &str) -> Self {
        Self::new(Action::Status { status, code: code.to_owned() })
    }

    /// Answers 200 with an error document and does nothing else.
    pub fn error_in_200(refusal: Refusal) -> Self {
        Self::new(Action::ErrorIn200(refusal))
    }

    /// Closes the connection before the request is processed.
    pub fn reset_before() -> Self {
        Self::new(Action::Reset)
    }

    /// Processes the request, then closes the connection without an answer.
    pub fn reset_after() -> Self {
        Self::new(Action::Reset).applied()
    }

    /// Announces the whole body of the answer and closes the connection after `bytes` of it.
    pub fn truncate_body(bytes: u64) -> Self {
        Self::new(Action::TruncateBody(bytes))
    }

    /// Inverts the byte at `offset` of the body. An offset after the end wraps around.
    pub fn wrong_bytes(offset: u64) -> Self {
        Self::new(Action::WrongBytes(offset))
    }

    /// Sends the body of the answer in chunks, with a pause before each.
    pub fn slow_drip(chunk_bytes: usize, pause: Duration) -> Self {
        Self::new(Action::SlowDrip { chunk_bytes, pause_ms: millis(pause) })
    }

    /// Waits before the request is processed.
    pub fn delay(delay: Duration) -> Self {
        Self::new(Action::DelayMs(millis(delay)))
    }

    /// Lists the objects before the last `writes` writes.
    pub fn stale_list(writes: usize) -> Self {
        Self::new(Action::StaleList(writes)).on(Op::List)
    }

    /// Limits the fault to this kind of request. Several calls add kinds.
    #[must_use]
    pub fn on(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }

    /// Limits the fault to requests with this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Limits the fault to requests with a matching key. `*` matches any characters, including
    /// slashes, and `?` one character. A pattern without both matches every key that contains it.
    /// The key of a list is its prefix.
    #[must_use]
    pub fn key(mut self, pattern: &str) -> Self {
        self.key = Some(pattern.to_owned());
        self
    }

    /// Sets the turns at which the fault strikes.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Lets the fault strike only at turn `turn`, counted from 1.
    #[must_use]
    pub fn nth(self, turn: u64) -> Self {
        self.when(When::Nth(turn))
    }

    /// Lets the fault strike at the first `turns` turns.
    #[must_use]
    pub fn first(self, turns: u64) -> Self {
        self.when(When::First(turns))
    }

    /// Lets the fault strike with this probability. The same seed repeats a run.
    #[must_use]
    pub fn chance(self, probability: f64, seed: u64) -> Self {
        self.when(When::Chance { probability, seed })
    }

    /// Processes the request before the answer is lost or replaced by an error.
    #[must_use]
    pub fn applied(mut self) -> Self {
        self.applied = true;
        self
    }

    fn matches(&self, target: &Target) -> bool {
        (self.ops.is_empty() || self.ops.contains(&target.op))
            && self.method.as_ref().is_none_or(|method| target.method.as_str().eq_ignore_ascii_case(method))
            && self.key.as_ref().is_none_or(|pattern| glob_matches(pattern, target.key_or_prefix()))
    }
}

impl When {
    fn is_at(self, turn: u64) -> bool {
        match self {
            Self::Always => true,
            Self::Nth(nth) => turn == nth,
            Self::First(count) => turn <= count,
            Self::After(count) => turn > count,
            Self::Every(step) => turn.checked_rem(step) == Some(0),
            Self::Chance { probability, seed } => {
                // The upper 53 bits are what a float between 0 and 1 can hold.
                let number = mixed(seed.wrapping_add(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 11;
                (number as f64) / ((1_u64 << 53) as f64) < probability
            }
        }
    }
}

/// SplitMix64's output function.
fn mixed(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// All rules, each with the number of its matching requests and the number of its strikes.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    rules: Vec<(Fault, u64, u64)>,
}

impl Schedule {
    pub(super) fn add(&mut self, fault: Fault) {
        self.rules.push((fault, 0, 0));
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(super) fn struck(&self) -> Vec<u64> {
        self.rules.iter().map(|(_, _, struck)| *struck).collect()
    }

    /// Counts the request, and returns the faults that strike it.
    pub(super) fn strike(&mut self, target: &Target) -> Strike {
        let mut strike = Strike::default();
        for (fault, matched, struck) in &mut self.rules {
            if !fault.matches(target) {
                continue;
            }
            *matched += 1;
            if !fault.when.is_at(*matched) {
                continue;
            }
            *struck += 1;
            strike.names.push(fault.action.name());
            match &fault.action {
                Action::DelayMs(delay) => strike.delay += Duration::from_millis(*delay),
                Action::TruncateBody(bytes) => strike.cut_bytes = Some(*bytes),
                Action::WrongBytes(offset) => strike.wrong_byte = Some(*offset),
                Action::SlowDrip { chunk_bytes, pause_ms } => {
                    strike.drip = Some((*chunk_bytes, Duration::from_millis(*pause_ms)));
                }
                Action::StaleList(writes) => strike.stale_writes = *writes,
                end if strike.end.is_none() => strike.end = Some((end.clone(), fault.applied)),
                _ => {}
            }
        }
        strike
    }
}

impl Action {
    fn name(&self) -> String {
        match self {
            Self::Refuse(refusal) | Self::ErrorIn200(refusal) => format!("{refusal:?}"),
            Self::Status { code, .. } => code.clone(),
            Self::Reset => "Reset".to_owned(),
            Self::TruncateBody(_) => "TruncateBody".to_owned(),
            Self::WrongBytes(_) => "WrongBytes".to_owned(),
            Self::SlowDrip { .. } => "SlowDrip".to_owned(),
            Self::DelayMs(_) => "Delay".to_owned(),
            Self::StaleList(_) => "StaleList".to_owned(),
        }
    }
}

/// All faults for one request.
#[derive(Debug, Default)]
pub(super) struct Strike {
    pub(super) delay: Duration,
    pub(super) cut_bytes: Option<u64>,
    pub(super) wrong_byte: Option<u64>,
    pub(super) drip: Option<(usize, Duration)>,
    pub(super) stale_writes: usize,
    /// The action that ends the request, and whether the request is processed before it.
    pub(super) end: Option<(Action, bool)>,
    pub(super) names: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns() {
        let at = |when: When| (1..=8).filter(|turn| when.is_at(*turn)).collect::<Vec<_>>();
        assert_eq!(at(When::Nth(3)), [3]);
        assert_eq!(at(When::First(2)), [1, 2]);
        assert_eq!(at(When::After(6)), [7, 8]);
        assert_eq!(at(When::Every(3)), [3, 6]);
        assert!(at(When::Every(0)).is_empty());
        let half = When::Chance { probability: 0.5, seed: 7 };
        let struck = (0..10_000).filter(|turn| half.is_at(*turn)).count();
        assert!((4_800..5_200).contains(&struck), "{struck}");
        assert_eq!(at(half), at(half));
    }

    #[test]
    fn json() {
        let text =
            r#"{"ops": ["upload_part"], "key": "a", "when": {"first": 2}, "action": {"refuse": "SlowDown"}}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!((fault.when, fault.action), (When::First(2), Action::Refuse(Refusal::SlowDown)));
        for action in
            [r#""reset""#, r#"{"delay_ms": 5}"#, r#"{"slow_drip": {"chunk_bytes": 1, "pause_ms": 2}}"#]
        {
            serde_json::from_str::<Action>(action).unwrap();
        }
        assert!(serde_json::from_str::<Fault>(r#"{"action": "reset", "kye": "a"}"#).is_err());
    }
}
