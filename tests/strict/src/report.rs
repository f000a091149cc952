//! The table of the comparison.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::tally::{CLASSES, Tally};

/// Operations of the waist without a system call: the kernel releases nodes under memory pressure.
const UNCOMPARED: &[&str] = &["forget"];

/// A server's counters from `tombolo top --once --json`.
#[derive(Debug, Default)]
pub struct Counts(BTreeMap<String, i64>);

impl Counts {
    /// Parses the counts of all servers and exports; `None` if the text is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let answer: Value = serde_json::from_str(text).ok()?;
        let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned();
        let mut counts = BTreeMap::new();
        for server in list(&answer, "servers")? {
            for export in list(&server, "exports")? {
                for operation in list(&export, "operations")? {
                    let name = operation.get("operation")?.as_str()?;
                    *counts.entry(name.to_owned()).or_default() += operation.get("count")?.as_i64()?;
                }
            }
        }
        Some(Self(counts))
    }

    /// Returns the increase since `before`.
    pub fn since(mut self, before: &Self) -> Self {
        for (name, count) in &mut self.0 {
            *count -= before.0.get(name).copied().unwrap_or_default();
        }
        self
    }

    fn of(&self, operations: &[&str]) -> i64 {
        operations.iter().filter_map(|operation| self.0.get(*operation)).sum()
    }
}

/// Prints the table and returns `true` if all classes match.
pub fn compare(tally: &Tally, counts: &Counts, mut print: impl FnMut(String)) -> bool {
    print(format!("{:<10}{:>8}  {:<44}{:>14}{:>8}", "class", "calls", "differences", "expected", "server"));
    let mut equal = true;
    for &class in CLASSES {
        let (calls, expected, seen) =
            (tally.calls(class), tally.expected(class), counts.of(class.operations));
        let causes =
            tally.differences(class).map(|(cause, count)| format!("{} {}", signed(count), cause.name));
        let causes: Vec<_> = causes.collect();
        if calls == 0 && causes.is_empty() && seen == 0 {
            continue;
        }
        let fits = expected.contains(&seen);
        equal &= fits;
        let mark = if fits { "" } else { "  UNEXPLAINED" };
        let (first, rest) =
            causes.split_first().map_or(("", [].as_slice()), |(first, rest)| (first.as_str(), rest));
        print(format!("{:<10}{calls:>8}  {first:<44}{:>14}{seen:>8}{mark}", class.name, plain(&expected)));
        rest.iter().for_each(|cause| print(format!("{:<10}{:>8}  {cause}", "", "")));
    }
    let known = |name: &str| {
        UNCOMPARED.contains(&name) || CLASSES.iter().any(|class| class.operations.contains(&name))
    };
    for (name, count) in counts.0.iter().filter(|(name, count)| !known(name) && **count != 0) {
        print(format!("{name:<10}{count:>76}  UNEXPLAINED"));
        equal = false;
    }
    equal
}

fn plain(range: &RangeInclusive<i64>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{}..{}", range.start(), range.end())
    }
}

fn signed(range: &RangeInclusive<i64>) -> String {
    if range.start() == range.end() {
        format!("{:+}", range.start())
    } else {
        format!("{:+}..{:+}", range.start(), range.end())
    }
}
