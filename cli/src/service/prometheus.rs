//! Counters as Prometheus wants them: its own text format, version 0.0.4, which all that scrape understand.

use std::collections::HashSet;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use tombolo_host_service::metrics::Endpoint;
use tombolo_layer_basic::stats::Operation;

use crate::assembly::options::address::ListenAddress;
use crate::failure::Failure;
use crate::service::Service;
use crate::service::counters::{
    CacheCounters, Counters, Lease, NfsClientCounters, NfsCounters, WriteBackState,
};

/// Where metrics are to be served: all addresses of a name.
pub fn listen(address: Option<&ListenAddress>) -> Result<Vec<TcpListener>, Failure> {
    let Some(address) = address else { return Ok(Vec::new()) };
    let bind = |address: SocketAddr| {
        TcpListener::bind(address)
            .map_err(|error| Failure::cannot(format_args!("serve metrics at {address}"), &error))
    };
    address.resolve()?.into_iter().map(bind).collect()
}

/// Serves the metrics of a server there. Nothing narrows its clients, so that it warns where others than this
/// host can.
pub fn serve(listeners: Vec<TcpListener>, service: &Arc<Service>) -> Result<Vec<Endpoint>, Failure> {
    let start = |listener: TcpListener| {
        let service = Arc::clone(service);
        let endpoint = Endpoint::start(listener, move || text(service.counters()))
            .map_err(|error| Failure::cannot("serve metrics", &error))?;
        if !endpoint.address().ip().is_loopback() {
            tracing::warn!(address = %endpoint.address(), "all that reach this address may read the metrics");
        }
        Ok(endpoint)
    };
    listeners.into_iter().map(start).collect()
}

/// The metrics that these counters come to.
fn text(counters: Counters) -> String {
    let mut registry = Registry::with_prefix("tombolo");
    registry.register_collector(Box::new(Snapshot(counters)));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => classic(&text),
        // Nothing but memory could fail here, and it says so by itself.
        Err(fmt::Error) => String::new(),
    }
}

/// From OpenMetrics, which the encoder writes: there a counter's help goes without the `_total` of its
/// samples, so that readers of the older format finds no help for them; and units and the end are lines of
/// their own.
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

/// A number of many series: its name, its help, and how it is read off one of them.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

const COUNTERS: &[Family<Operation>] = &[
    ("operations", "Operations answered", |operation| operation.count),
    ("operation_errors", "Operations answered with an error", |operation| operation.errors),
    ("operation_bytes", "File data read or written", |operation| operation.bytes),
];

const NFS_GAUGES: &[Family<NfsCounters>] =
    &[("nfs_connections", "Connections there are", |nfs| nfs.connections)];

const NFS_COUNTERS: &[Family<NfsCounters>] = &[
    ("nfs_calls", "Calls received", |nfs| nfs.calls),
    ("nfs_connects", "Connections that were made", |nfs| nfs.connections_total),
    ("nfs_refused", "Callers that were turned away", |nfs| nfs.refused),
    ("nfs_cut_off", "Connections that were cut off", |nfs| nfs.cut_off),
    ("nfs_received_bytes", "Bytes of calls", |nfs| nfs.received_bytes),
    ("nfs_sent_bytes", "Bytes of replies", |nfs| nfs.sent_bytes),
];

const CLIENT_GAUGES: &[Family<NfsClientCounters>] = &[
    ("nfs_client_in_flight_limit", "How many reads and writes may be outstanding", |client| client.in_flight),
    ("nfs_client_outstanding", "Calls whose answer is still to come", |client| client.outstanding),
    ("nfs_client_waiting", "Reads and writes that wait for the limit", |client| client.waiting),
    ("nfs_client_round_trip_nanoseconds", "The smoothed round trip", |client| client.round_trip_ns),
    ("nfs_client_unresponsive_nanoseconds", "How long the server has not been responding", |client| {
        client.unresponsive_ns
    }),
];

const CLIENT_COUNTERS: &[Family<NfsClientCounters>] = &[
    ("nfs_client_calls", "Calls made", |client| client.calls),
    ("nfs_client_replies", "Replies to them", |client| client.replies),
    ("nfs_client_odd_replies", "Replies that answered no call, or made no sense", |client| {
        client.odd_replies
    }),
    ("nfs_client_retransmissions", "Calls that were sent again", |client| client.retransmissions),
    ("nfs_client_reconnects", "Connections that replaced a lost one", |client| client.reconnects),
    ("nfs_client_sent_bytes", "Bytes of calls", |client| client.sent_bytes),
    ("nfs_client_received_bytes", "Bytes of replies", |client| client.received_bytes),
];

const LEASE_GAUGES: &[Family<CacheCounters>] = &[(
    "cache_lease_held",
    "Whether the lease of the tree is held: 1, or 0 when it was lost, could not be renewed or is not granted",
    |cache| u64::from(cache.lease == Some(Lease::Held)),
)];

const DISK_GAUGES: &[Family<u64>] =
    &[("disk_requests_under_way", "Requests that have begun and not ended", |under_way| *under_way)];

const CACHE_COUNTERS: &[Family<CacheCounters>] = &[
    ("cache_hits", "Operations that were answered without the origin", |cache| cache.hits),
    ("cache_misses", "Operations that waited for the origin", |cache| cache.misses),
    ("cache_served_bytes", "File data that readers got", |cache| cache.served_bytes),
    ("cache_hit_bytes", "File data that were here when they were asked for", |cache| cache.hit_bytes),
    ("cache_fetched_bytes", "File data that were read at the origin", |cache| cache.fetched_bytes),
    ("cache_saved_bytes", "What of these did not cross the line, as it came compressed", |cache| {
        cache.saved_bytes
    }),
    ("cache_borrowed_bytes", "File data that another cache has lent", |cache| cache.borrowed_bytes),
    ("cache_lent_bytes", "File data that were lent to other caches", |cache| cache.lent_bytes),
    (
        "cache_refused_bytes",
        "Data of other caches, or of other files here, that are not the file's",
        |cache| cache.refused_bytes,
    ),
    ("cache_equal_bytes", "File data that were here already under another name", |cache| cache.equal_bytes),
    ("cache_zero_bytes", "Zeroes that were not read at the origin, as a sidecar told of them", |cache| {
        cache.zero_bytes
    }),
    (
        "cache_guessed_bytes",
        "Small files and listings that were fetched before they were asked for",
        |cache| cache.guessed_bytes,
    ),
    ("cache_guess_used_bytes", "What of these was looked at since", |cache| cache.guess_used_bytes),
    ("cache_traced_bytes", "File data that were fetched as a trace told of them", |cache| cache.traced_bytes),
    ("cache_trace_used_bytes", "What of these was read since", |cache| cache.trace_used_bytes),
    ("cache_backed", "Times that a kernel was given a file to read by itself", |cache| cache.backed),
];

const WRITE_BACK_GAUGES: &[Family<WriteBackState>] = &[
    ("write_back_dirty_bytes", "Data that the origin does not have", |state| state.dirty_bytes),
    ("write_back_dirty_nodes", "Files and names of which the origin lacks something", |state| {
        state.dirty_nodes
    }),
    ("write_back_oldest_nanoseconds", "Age of the oldest change that the origin lacks", |state| {
        state.oldest_ns
    }),
    ("write_back_change", "The latest change", |state| state.change),
    ("write_back_on_disk", "The local disk has everything up to this change", |state| state.on_disk),
    ("write_back_at_origin", "The origin has everything up to this change", |state| state.at_origin),
    ("write_back_torn", "Blocks that were being written over at a sudden end", |state| state.torn),
    ("write_back_refused", "Files and directories with attributes that the origin has refused", |state| {
        state.refused
    }),
    ("write_back_failing", "Whether the last attempt to bring changes to the origin failed", |state| {
        u64::from(state.failure.is_some())
    }),
];

const WRITE_BACK_COUNTERS: &[Family<WriteBackState>] =
    &[("write_back_conflicts", "Versions of others that were kept beside ours", |state| state.conflicts)];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let (name, help) = ("uptime", "How long the server has run");
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
        let (name, help) = ("operation_duration", "Time from a request to its answer, sampled");
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

/// Families of one kind, each with all its series.
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

/// 1 µs, 4 µs, … 4.2 s: twelve time series for each operation instead of hundreds.
const STEP_BOUNDS_US: [u64; 12] =
    [1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304];

/// The histogram in coarse steps: for each its bound in seconds, and how many answers fall in it.
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
            "# HELP tombolo_operation_duration_seconds Time from a request to its answer, sampled",
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
        // Each sample has help under its own name, but for the parts of a histogram.
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
