//! State shared by the links of one server.

use super::counters::Totals;
use tombolo_host_runtime::rate_limit::RateLimit;

/// Totals of closed links, and the limit on log messages, of one server.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) totals: Totals,
    /// Rate limit of the message about a cut link.
    pub(super) cuts: RateLimit,
}
