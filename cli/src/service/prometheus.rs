//! Prometheus metrics: text format version 0.0.4, which all scrapers understand.

use std::collections::HashSet;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use tombolo_host_service::metrics::Server as MetricsServer;
use tombolo_layer_basic::stats::Operation;

use crate::assembly::options::address::ListenAddress;
use crate::failure::{Failure, OrCannot};
use crate::service::Service;
use crate::service::counters::{
    CacheCounters, Counters, Lease, NfsClientCounters, NfsCounters, WriteBackState,
};

/// Binds the addresses of the metrics endpoint: all addresses of a name.
pub fn listen(address: Option<&ListenAddress>) -> Result<Vec<TcpListener>, Failure> {
    let Some(address) = address else { return Ok(Vec::new()) };
    let bind = |address: SocketAddr| {
        TcpListener::bind(address).or_cannot(format_args!("serve metrics at {address}"))
    };
    address.resolve()?.into_iter().map(bind).collect()
}

/// Serves the metrics of a server. Warns about addresses other than loopback, because there is no access
/// control.
pub fn serve(listeners: Vec<TcpListener>, service: &Arc<Service>) -> Result<Vec<MetricsServer>, Failure> {
    let start = |listener: TcpListener| {
        let service = Arc::clone(service);
        let endpoint =
            MetricsServer::start(listener, move || text(service.counters())).or_cannot("serve metrics")?;
        if !endpoint.address().ip().is_loopback() {
            tracing::warn!(address = %endpoint.address(), "metrics are readable by anyone who can reach this address");
        }
        Ok(endpoint)
    };
    listeners.into_iter().map(start).collect()
}

fn text(counters: Counters) -> String {
    let mut registry = Registry::with_prefix("tombolo");
    registry.register_collector(Box::new(Snapshot(counters)));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => classic(&text),
        // Encoding could fail only if memory ran out, which aborts the process.
        Err(fmt::Error) => String::new(),
    }
}

/// Converts from OpenMetrics, which the encoder writes: there a counter's help lacks the `_total` of its
/// samples, so that parsers of the older format miss it, and units and the end have their own lines.
fn classic(open_metrics: &str) -> String {
    let counters: HashSet<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let Some((keyword, rest)) =
            line.strip_prefix("# ").map(|line| line.split_once(' ').unwrap_or((line, "")))
        else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let total = if counters.contains(name) { "_total" } else { "" };
        if matches!(keyword, "HELP" | "TYPE") {
            text.push_str(&format!("# {keyword} {name}{total} {rest}\n"));
        }
    }
    text
}

#[derive(Debug)]
struct Snapshot(Counters);

/// A family of series: name, help and accessor.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

const COUNTERS: &[Family<Operation>] = &[
    ("operations", "Operations answered", |operation| operation.count),
    ("operation_errors", "Operations answered with an error", |operation| operation.errors),
    ("operation_bytes", "File data read or written", |operation| operation.bytes),
];

const NFS_GAUGES: &[Family<NfsCounters>] = &[("nfs_connections", "Open connections", |nfs| nfs.connections)];

const NFS_COUNTERS: &[Family<NfsCounters>] = &[
    ("nfs_calls", "Calls received", |nfs| nfs.calls),
    ("nfs_connects", "Accepted connections", |nfs| nfs.connections_total),
    ("nfs_refused", "Refused callers", |nfs| nfs.refused),
    ("nfs_cut_off", "Connections closed by the server", |nfs| nfs.cut_off),
    ("nfs_received_bytes", "Bytes of calls", |nfs| nfs.received_bytes),
    ("nfs_sent_bytes", "Bytes of replies", |nfs| nfs.sent_bytes),
];

const CLIENT_GAUGES: &[Family<NfsClientCounters>] = &[
    ("nfs_client_in_flight_limit", "Maximum number of outstanding reads and writes", |client| {
        client.in_flight
    }),
    ("nfs_client_outstanding", "Unanswered calls", |client| client.outstanding),
    ("nfs_client_waiting", "Reads and writes that wait for the in-flight limit", |client| client.waiting),
    ("nfs_client_round_trip_nanoseconds", "Smoothed round-trip time", |client| client.round_trip_ns),
    ("nfs_client_unresponsive_nanoseconds", "Time since the server stopped responding", |client| {
        client.unresponsive_ns
    }),
];

const CLIENT_COUNTERS: &[Family<NfsClientCounters>] = &[
    ("nfs_client_calls", "Calls made", |client| client.calls),
    ("nfs_client_replies", "Replies to calls", |client| client.replies),
    ("nfs_client_odd_replies", "Replies that matched no call, or were malformed", |client| {
        client.odd_replies
    }),
    ("nfs_client_retransmissions", "Retransmitted calls", |client| client.retransmissions),
    ("nfs_client_reconnects", "Connections that replaced a lost one", |client| client.reconnects),
    ("nfs_client_sent_bytes", "Bytes of calls", |client| client.sent_bytes),
    ("nfs_client_received_bytes", "Bytes of replies", |client| client.received_bytes),
];

const LEASE_GAUGES: &[Family<CacheCounters>] = &[(
    "cache_lease_held",
    "1 if the lease of the tree is held; 0 if it was lost, has expired or is not granted",
    |cache| u64::from(cache.lease == Some(Lease::Held)),
)];

const DISK_GAUGES: &[Family<u64>] =
    &[("disk_requests_under_way", "Requests in progress", |under_way| *under_way)];

const CACHE_COUNTERS: &[Family<CacheCounters>] = &[
    ("cache_hits", "Operations served without the origin", |cache| cache.hits),
    ("cache_misses", "Operations that waited for the origin", |cache| cache.misses),
    ("cache_served_bytes", "File data returned to readers", |cache| cache.served_bytes),
    ("cache_hit_bytes", "File data served from the cache", |cache| cache.hit_bytes),
    ("cache_fetched_bytes", "File data read from the origin", |cache| cache.fetched_bytes),
    ("cache_saved_bytes", "Bytes that compression of fetched data saved in transit", |cache| {
        cache.saved_bytes
    }),
    ("cache_borrowed_bytes", "File data borrowed from other caches", |cache| cache.borrowed_bytes),
    ("cache_lent_bytes", "File data lent to other caches", |cache| cache.lent_bytes),
    (
        "cache_refused_bytes",
        "Data from another cache or file that did not match the file's digest",
        |cache| cache.refused_bytes,
    ),
    ("cache_equal_bytes", "File data copied from equal cached blocks", |cache| cache.equal_bytes),
    ("cache_zero_bytes", "Zeroes known from a sidecar, not read from the origin", |cache| cache.zero_bytes),
    ("cache_guessed_bytes", "Small files and listings fetched ahead", |cache| cache.guessed_bytes),
    ("cache_guess_used_bytes", "Small files and listings fetched ahead and used since", |cache| {
        cache.guess_used_bytes
    }),
    ("cache_traced_bytes", "File data fetched ahead according to a trace", |cache| cache.traced_bytes),
    ("cache_trace_used_bytes", "File data fetched ahead according to a trace and read since", |cache| {
        cache.trace_used_bytes
    }),
    ("cache_backed", "Files passed to a kernel for passthrough reads", |cache| cache.backed),
];

const WRITE_BACK_GAUGES: &[Family<WriteBackState>] = &[
    ("write_back_dirty_bytes", "Unsent data", |state| state.dirty_bytes),
    ("write_back_dirty_nodes", "Files and names with unsent changes", |state| state.dirty_nodes),
    ("write_back_oldest_nanoseconds", "Age of the oldest unsent change", |state| state.oldest_ns),
    ("write_back_change", "Latest change", |state| state.change),
    ("write_back_on_disk", "Last change up to which the local disk has everything", |state| state.on_disk),
    ("write_back_at_origin", "Last change up to which the origin has everything", |state| state.at_origin),
    ("write_back_torn", "Blocks that were being overwritten at an unclean end", |state| state.torn),
    ("write_back_refused", "Files and directories with changes that the origin has refused", |state| {
        state.refused
    }),
    ("write_back_failing", "1 if the last attempt to send changes to the origin failed", |state| {
        u64::from(state.failure.is_some())
    }),
];

const WRITE_BACK_COUNTERS: &[Family<WriteBackState>] =
    &[("write_back_conflicts", "Conflicting versions retained next to ours", |state| state.conflicts)];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let (name, help) = ("uptime", "Uptime of the server");
        encoder
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?
            .encode_gauge(&self.0.seconds())?;
        let operations: Vec<_> = self.operations().collect();
        encode_all(encoder, COUNTERS, MetricType::Counter, &operations)?;
        let disks = self.0.exports.iter();
        let disks =
            disks.filter_map(|(export, disk)| Some(([("export", &**export)], disk.under_way.as_ref()?)));
        let disks: Vec<_> = disks.collect();
        if !disks.is_empty() {
            encode_all(encoder, DISK_GAUGES, MetricType::Gauge, &disks)?;
        }
        let nfs: Vec<_> = self.0.nfs.iter().map(|(address, nfs)| ([("address", &**address)], nfs)).collect();
        if !nfs.is_empty() {
            encode_all(encoder, NFS_GAUGES, MetricType::Gauge, &nfs)?;
            encode_all(encoder, NFS_COUNTERS, MetricType::Counter, &nfs)?;
        }
        let clients = self.0.nfs_clients.iter();
        let clients: Vec<_> = clients.map(|(export, client)| ([("export", &**export)], client)).collect();
        if !clients.is_empty() {
            encode_all(encoder, CLIENT_GAUGES, MetricType::Gauge, &clients)?;
            encode_all(encoder, CLIENT_COUNTERS, MetricType::Counter, &clients)?;
        }
        let caches: Vec<_> =
            self.0.caches.iter().map(|(export, cache)| ([("export", &**export)], cache)).collect();
        if !caches.is_empty() {
            encode_all(encoder, CACHE_COUNTERS, MetricType::Counter, &caches)?;
        }
        let leased: Vec<_> = caches.into_iter().filter(|(_, cache)| cache.lease.is_some()).collect();
        if !leased.is_empty() {
            encode_all(encoder, LEASE_GAUGES, MetricType::Gauge, &leased)?;
        }
        let kept: Vec<_> =
            self.0.write_backs.iter().map(|(export, state)| ([("export", &**export)], state)).collect();
        if !kept.is_empty() {
            encode_all(encoder, WRITE_BACK_GAUGES, MetricType::Gauge, &kept)?;
            encode_all(encoder, WRITE_BACK_COUNTERS, MetricType::Counter, &kept)?;
        }
        let (name, help) = ("operation_duration", "Time from request to reply, sampled");
        let mut family =
            encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, operation) in operations {
            let timed = operation.histogram.iter().map(|(_, count)| count).sum();
            let (sum, steps) = (operation.total_ns as f64 / 1e9, steps(operation));
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, timed, &steps, None)?;
        }
        Ok(())
    }
}

/// Encodes families of one kind, each with all its series.
fn encode_all<const LABELS: usize, T>(
    encoder: &mut DescriptorEncoder<'_>,
    families: &[Family<T>],
    kind: MetricType,
    series: &[([(&str, &str); LABELS], &T)],
) -> fmt::Result {
    for (name, help, field) in families {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, numbers) in series {
            let value = field(numbers);
            let mut sample = family.encode_family(labels)?;
            match kind {
                MetricType::Gauge => sample.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?,
                _ => sample.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
            }
        }
    }
    Ok(())
}

impl Snapshot {
    fn operations(&self) -> impl Iterator<Item = ([(&str, &str); 2], &Operation)> {
        self.0.exports.iter().flat_map(|(export, snapshot)| {
            let operations = snapshot.operations.iter();
            operations.map(|operation| ([("export", &**export), ("operation", &*operation.name)], operation))
        })
    }
}

/// 1 µs, 4 µs, … 4.2 s: a dozen time series per operation instead of hundreds.
const STEP_BOUNDS_US: [u64; 12] =
    [1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304];

/// Returns the histogram in coarse steps: upper bound in seconds and count.
fn steps(operation: &Operation) -> Vec<(f64, u64)> {
    let mut rest = operation.histogram.iter().peekable();
    let mut below = |bound_ns: u64| {
        let mut count = 0;
        while let Some((_, more)) = rest.next_if(|(step_ns, _)| *step_ns <= bound_ns) {
            count += more;
        }
        count
    };
    let mut steps: Vec<_> =
        STEP_BOUNDS_US.iter().map(|&bound_us| (bound_us as f64 / 1e6, below(bound_us * 1000))).collect();
    steps.push((f64::INFINITY, below(u64::MAX)));
    steps
}

#[cfg(test)]
mod tests {
    use tombolo_layer_basic::stats::Counters as ExportCounters;

    use super::*;
    use crate::service::Counted;
    use crate::service::status::Status;

    #[test]
    fn the_text_is_what_a_scraper_reads() {
        let histogram = vec![(900, 2), (1_500, 1), (99_000_000_000, 1)];
        let operation = Operation {
            name: "read".into(),
            count: 4,
            total_ns: 2_500_000_000,
            bytes: 7,
            histogram,
            ..Default::default()
        };
        let nfs = NfsCounters { connections: 2, calls: 9, ..NfsCounters::default() };
        let nfs = ("127.0.0.1:2049".to_owned(), nfs);
        let snapshot = tombolo_layer_basic::stats::Snapshot { operations: vec![operation], under_way: None };
        let disk = tombolo_layer_basic::stats::Snapshot { under_way: Some(7), ..Default::default() };
        let client = NfsClientCounters { calls: 5, in_flight: 32, ..NfsClientCounters::default() };
        let counters = Counters {
            uptime_ns: 0,
            exports: [("/src".to_owned(), snapshot), ("vm.img".to_owned(), disk)].into(),
            nfs: [nfs].into(),
            nfs_clients: [("nfs://h/a".to_owned(), client)].into(),
            caches: [("/src".to_owned(), CacheCounters { hits: 3, ..CacheCounters::default() })].into(),
            write_backs: Default::default(),
        };
        let text = text(counters);
        for line in [
            "# HELP tombolo_operations_total Operations answered",
            "# TYPE tombolo_operations_total counter",
            "# HELP tombolo_operation_duration_seconds Time from request to reply, sampled",
            "tombolo_operations_total{export=\"/src\",operation=\"read\"} 4",
            "tombolo_operation_bytes_total{export=\"/src\",operation=\"read\"} 7",
            "tombolo_operation_duration_seconds_count{export=\"/src\",operation=\"read\"} 4",
            "tombolo_operation_duration_seconds_sum{export=\"/src\",operation=\"read\"} 2.5",
            "tombolo_disk_requests_under_way{export=\"vm.img\"} 7",
            "tombolo_nfs_connections{address=\"127.0.0.1:2049\"} 2",
            "tombolo_nfs_client_in_flight_limit{export=\"nfs://h/a\"} 32",
            "tombolo_nfs_client_calls_total{export=\"nfs://h/a\"} 5",
            "tombolo_cache_hits_total{export=\"/src\"} 3",
            "tombolo_nfs_calls_total{address=\"127.0.0.1:2049\"} 9",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nnot in\n{text}");
        }
        // Each sample has help under its own name, except the parts of a histogram.
        for sample in
            text.lines().filter(|line| !line.starts_with('#') && !line.contains("_duration_seconds_"))
        {
            let name = sample.split(['{', ' ']).next().expect("a name");
            assert!(text.contains(&format!("# HELP {name} ")), "no help for {name}");
        }
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        let buckets: Vec<_> = text.lines().filter(|line| line.contains("_bucket{")).collect();
        let ends = |line: &&str, end: &str| line.ends_with(end);
        assert!(ends(&buckets[0], "} 2") && ends(&buckets[1], "} 3"), "{buckets:?}");
        assert!(buckets[12].contains("le=\"+Inf\"") && ends(&buckets[12], "} 4"), "{buckets:?}");
    }

    #[test]
    fn a_server_without_requests_has_metrics_too() {
        let status = Status::of_this_process(Vec::new(), Vec::new());
        let exports = vec![("/src".into(), ExportCounters::new())];
        let service = Service::new(status, Counted { exports, ..Counted::default() });
        assert!(
            text(service.counters()).contains("# TYPE tombolo_uptime_seconds gauge\ntombolo_uptime_seconds ")
        );
    }
}
