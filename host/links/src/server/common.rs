//! What the links of one server share.

use super::counters::Totals;
use tombolo_host_runtime::rate_limit::RateLimit;

/// What the links of one server share.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) totals: Totals,
    /// The line that a link was cut.
    pub(super) cuts: RateLimit,
}
