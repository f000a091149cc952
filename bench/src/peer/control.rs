//! Request counters of our servers.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tombolo_host_service::control::Client;

use crate::error::{Doing, OrWrong, Result};

/// Number of requests that a server has answered since its start, by operation of the waist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// Queries the server at its control socket (docs/protocols/control.md, `stats`).
    pub fn ask(control: &Path) -> Result<Self> {
        let mut client = Client::connect(control).doing_to("connect to", control)?;
        let stats = client.ask("stats").or_wrong("ask for requests")?;
        Ok(Self::of(&stats))
    }

    fn of(stats: &Value) -> Self {
        let exports = stats["exports"].as_object().into_iter().flat_map(|exports| exports.values());
        let operations = exports.filter_map(|export| export["operations"].as_array()).flatten();
        let mut counts = BTreeMap::new();
        for operation in operations {
            let name = operation["name"].as_str().unwrap_or_default();
            *counts.entry(name.to_owned()).or_default() += operation["count"].as_u64().unwrap_or_default();
        }
        Self(counts)
    }

    /// Returns the requests since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let more = |(name, count): (&String, &u64)| {
            let before = earlier.0.get(name).copied().unwrap_or_default();
            (*count > before).then(|| (name.clone(), count - before))
        };
        Self(self.0.iter().filter_map(more).collect())
    }

    /// Returns `none`, or the total and the number of each.
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "none".to_owned();
        }
        let each: Vec<_> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        format!("{} ({})", self.0.values().sum::<u64>(), each.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_count_covers_all_exports_since_the_start() {
        let of = |getattr: u64, lookup: u64| {
            let operation = |name: &str, count: u64| serde_json::json!({ "name": name, "count": count });
            let one = [operation("getattr", getattr), operation("lookup", lookup)];
            let other = [operation("getattr", 1)];
            Requests::of(&serde_json::json!({ "exports": {
                "/a": { "operations": one }, "/b": { "operations": other },
            } }))
        };
        assert_eq!(of(5, 2).since(&of(5, 2)).text(), "none");
        assert_eq!(of(7, 2).text(), "10 (getattr 8, lookup 2)");
        assert_eq!(of(7, 2).since(&of(4, 2)).text(), "3 (getattr 3)");
    }
}
