//! The names of steps in Orbax' forms.
//!
//! | form | name of step 5 | also |
//! |---|---|---|
//! | plain | `5` | |
//! | with a prefix | `step_5` | |
//! | with a fixed width | `000005` | `step_000005`; a longer number takes more digits |
//! | composite | one form is written, several are read | the first form that matches a name applies |
//!
//! By default new steps have the form of the existing steps.
//!
//! Source: orbax `_src/path/step.py`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::formats::container::{number_of, split_name};
use crate::storage::UNCOMMITTED_MARK;

/// The largest width of a form: the number of digits of the largest step.
const WIDTH_MAX: usize = 20;

/// One form of names: `[prefix_]number`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepName {
    /// The prefix without its underscore; empty if there is none.
    prefix: String,
    /// The least number of digits; 0 for a plain number.
    width: usize,
}

impl StepName {
    /// A form with this prefix, which an underscore follows, and with at least `width` digits, as
    /// in Orbax.
    ///
    /// # Errors
    /// `InvalidArgument` for a prefix that cannot be part of a name, or with which temporary or
    /// hidden names begin; for a width of 0 or above 20.
    pub fn new(prefix: Option<&str>, width: Option<usize>) -> Result<Self> {
        let prefix = prefix.unwrap_or_default();
        if prefix.contains(['/', '\0']) || prefix.starts_with('.') || prefix.contains(UNCOMMITTED_MARK) {
            return Err(Error::invalid("the prefix of step names is not valid")
                .expected("the beginning of a name of a folder", format_args!("{prefix:?}"))
                .help("a prefix has no slash and does not begin with a dot"));
        }
        let width = match width {
            Some(width) if !(1..=WIDTH_MAX).contains(&width) => {
                return Err(Error::invalid("the number of digits is not valid")
                    .expected(format_args!("1 to {WIDTH_MAX}"), width));
            }
            width => width.unwrap_or(0),
        };
        Ok(Self { prefix: prefix.to_owned(), width })
    }

    /// The name of a step in this form.
    pub fn format(&self, step: u64) -> String {
        let underscore = if self.prefix.is_empty() { "" } else { "_" };
        format!("{}{underscore}{step:0width$}", self.prefix, width = self.width)
    }

    /// The number of the step with this name; `None` for a name of another form.
    pub fn parse(&self, name: &str) -> Option<u64> {
        let (prefix, digits) = split_name(name)?;
        let step = number_of(digits)?;
        // Accept only the name that this form writes: `05` is not the name of step 5 in the plain
        // form.
        (prefix == self.prefix && self.format(step) == name).then_some(step)
    }
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format(5))
    }
}

/// The forms of names in a folder of steps: the form to write, and all forms to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepNames {
    written: StepName,
    /// The forms to read, in order of precedence, including the form to write.
    read: Vec<StepName>,
    /// The numbers of steps with given names that follow no form.
    given: BTreeMap<String, u64>,
}

impl Default for StepNames {
    fn default() -> Self {
        Self::one(StepName::default())
    }
}

impl StepNames {
    /// One form for reading and writing.
    pub fn one(form: StepName) -> Self {
        Self { written: form.clone(), read: vec![form], given: BTreeMap::new() }
    }

    /// One form for writing, and more forms for reading.
    pub fn composite(written: StepName, others: impl IntoIterator<Item = StepName>) -> Self {
        let mut read = vec![written.clone()];
        for form in others {
            if !read.contains(&form) {
                read.push(form);
            }
        }
        Self { written, read, given: BTreeMap::new() }
    }

    /// Only the given names, in any form. The caller knows how the names are made.
    pub fn given(names: impl IntoIterator<Item = (u64, String)>) -> Self {
        let given = names.into_iter().map(|(step, name)| (name, step)).collect();
        Self { written: StepName::default(), read: Vec::new(), given }
    }

    /// The forms of the names in a folder, the most frequent first. New steps get the most frequent
    /// form. Without steps the form is a plain number.
    #[doc(hidden)]
    pub fn found_in<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        // For each prefix: the count of plain names, and the count of padded names of each width.
        let mut counts: BTreeMap<(&str, usize), usize> = BTreeMap::new();
        let mut plain: Vec<(&str, usize)> = Vec::new();
        for name in names {
            let Some((prefix, digits)) = split_name(name) else { continue };
            if number_of(digits).is_none() {
                continue;
            }
            match digits.len() > 1 && digits.starts_with('0') {
                true => *counts.entry((prefix, digits.len())).or_default() += 1,
                false => plain.push((prefix, digits.len())),
            }
        }
        // A number that is long enough without zeros counts for the padded form, if one exists.
        for (prefix, len) in plain {
            let padded =
                counts.iter().filter(|((other, width), _)| *other == prefix && (1..=len).contains(width));
            let form = padded.max_by_key(|(_, count)| **count).map_or((prefix, 0), |(form, _)| *form);
            *counts.entry(form).or_default() += 1;
        }
        let mut forms: Vec<_> = counts.into_iter().collect();
        // The sort is stable: forms with equal counts stay sorted by prefix, then by width.
        forms.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut forms = forms
            .into_iter()
            .map(|((prefix, width), _)| StepName { prefix: prefix.to_owned(), width })
            .filter(|form| form.width <= WIDTH_MAX);
        match forms.next() {
            Some(first) => Self::composite(first, forms),
            None => Self::default(),
        }
    }

    /// The forms for reading, in order of precedence.
    #[doc(hidden)]
    pub fn read(&self) -> &[StepName] {
        &self.read
    }

    /// The name that a new step gets.
    pub fn format(&self, step: u64) -> String {
        self.written.format(step)
    }

    /// The number of the step with this name, and the position of the form that matches.
    pub fn parse(&self, name: &str) -> Option<(u64, usize)> {
        let formed = self.read.iter().enumerate().find_map(|(form, read)| Some((read.parse(name)?, form)));
        formed.or_else(|| Some((*self.given.get(name)?, 0)))
    }

    /// The possible names of a step, in order of precedence.
    #[doc(hidden)]
    pub fn names_of(&self, step: u64) -> impl Iterator<Item = String> + '_ {
        let given = self.given.iter().filter(move |(_, number)| **number == step);
        self.read.iter().map(move |form| form.format(step)).chain(given.map(|(name, _)| name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(prefix: &str, width: usize) -> StepName {
        StepName::new(Some(prefix), Some(width).filter(|width| *width > 0)).unwrap()
    }

    #[test]
    fn forms_are_those_of_orbax() {
        for (form, step, name) in [
            (form("", 0), 23, "23"),
            (form("", 4), 23, "0023"),
            (form("step", 0), 23, "step_23"),
            (form("step", 4), 23, "step_0023"),
            (form("step", 4), 123_456, "step_123456"),
            (form("a_b", 1), 0, "a_b_0"),
            (form("", 0), i64::MAX as u64, "9223372036854775807"),
        ] {
            assert_eq!(form.format(step), name);
            assert_eq!(form.parse(name), Some(step), "{name}");
        }
        for (form, name) in [
            (form("", 0), "023"),
            (form("", 0), "step_23"),
            (form("", 4), "23"),
            (form("", 4), "00023"),
            (form("step", 0), "step_-3"),
            (form("step", 0), "step23"),
            (form("step", 0), "other_23"),
            (form("", 0), "99999999999999999999999"),
            (form("", 0), "9223372036854775808"),
            (form("", 0), "5.orbax-checkpoint-tmp"),
            (form("", 0), ""),
        ] {
            assert_eq!(form.parse(name), None, "{name}");
        }
    }

    #[test]
    fn refuses_what_no_name_begins_with() {
        for prefix in ["a/b", ".hidden", "x.orbax-checkpoint-tmp", "\0"] {
            assert!(StepName::new(Some(prefix), None).is_err(), "{prefix:?}");
        }
        assert!(StepName::new(None, Some(0)).is_err());
        assert!(StepName::new(None, Some(21)).is_err());
    }

    #[test]
    fn finds_the_forms_of_a_folder() {
        let found = |names: &[&str]| {
            let names = StepNames::found_in(names.iter().copied());
            names.read().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), ["5"]);
        assert_eq!(found(&["notes", "7", "10"]), ["5"]);
        assert_eq!(found(&["0001", "0020", "12345"]), ["0005"]);
        assert_eq!(found(&["0", "10", "200"]), ["5"]);
        assert_eq!(found(&["step_2", "step_10", "5"]), ["step_5", "5"]);
        assert_eq!(found(&["a_01", "a_02", "a_100", "3", "4"]), ["a_05", "5"]);
    }

    #[test]
    fn the_first_form_that_fits_counts() {
        let names = StepNames::composite(form("step", 0), [form("", 0), form("step", 0)]);
        assert_eq!(names.format(7), "step_7");
        assert_eq!(names.parse("7"), Some((7, 1)));
        assert_eq!(names.parse("step_7"), Some((7, 0)));
        assert_eq!(names.parse("step_07"), None);
        assert_eq!(names.read().len(), 2);
    }

    #[test]
    fn given_names_need_no_form() {
        let names = StepNames::given([(7, "epoch-7".to_owned()), (12, "a dozen".to_owned())]);
        assert_eq!(names.parse("a dozen"), Some((12, 0)));
        assert_eq!(names.names_of(7).collect::<Vec<_>>(), ["epoch-7"]);
        assert_eq!((names.parse("7"), names.names_of(8).count()), (None, 0));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(step in 0..=i64::MAX as u64, width in 0_usize..=20, prefix in "([a-z][a-z_0-9]{0,6})?") {
            let form = form(&prefix, width);
            prop_assert_eq!(form.parse(&form.format(step)), Some(step));
            let found = StepNames::found_in([form.format(step).as_str()]);
            prop_assert_eq!(found.parse(&form.format(step)).map(|(step, _)| step), Some(step));
        }
    }
}
