//! Formatting of counters, as text and as JSON.

use std::cmp::Reverse;

use serde_json::{Value, json};
use tombolo_layer_basic::stats::{Operation, Snapshot};

use super::source::Sample;
use crate::service::counters::{CacheCounters, Lease, NfsClientCounters, NfsCounters, WriteBackState};
use crate::table::table;

const HEADER: &[&str] =
    &["operation", "total s", "count", "errors", "MiB", "per second", "mean µs", "p50 µs", "p99 µs"];

/// Formats a title for each server and a table for each of its exports.
pub fn as_tables(samples: &[Sample]) -> String {
    samples.iter().map(as_text).collect::<Vec<_>>().join("\n\n")
}

pub fn as_json(samples: &[Sample]) -> String {
    json!({ "servers": samples.iter().map(server_json).collect::<Vec<_>>() }).to_string()
}

fn as_text(sample: &Sample) -> String {
    let up_s = sample.total.seconds() as u64;
    let up = format!("{}:{:02}:{:02}", up_s / 3600, up_s / 60 % 60, up_s % 60);
    let title = format!("{}  pid {}  up {up}", sample.socket.display(), sample.status.pid);
    let exports = sample.total.exports.iter().map(|(name, total)| {
        let endpoints = sample.status.endpoints.iter().filter(|endpoint| endpoint.export == *name);
        let endpoints: Vec<_> =
            endpoints.map(|endpoint| format!("{} {}", endpoint.kind, endpoint.at)).collect();
        let states = [
            Some(format!("{name} by {}", endpoints.join(", "))),
            sample.total.caches.get(name).map(|cache| cache_line(sample, name, cache)),
            sample.total.write_backs.get(name).map(write_back_lines),
            total.under_way.map(|under_way| disk_line(sample, name, under_way)),
            sample.total.nfs_clients.get(name).map(|client| client_lines(sample, name, client)),
            Some(operations_table(sample, name, total)),
        ];
        states.into_iter().flatten().collect::<Vec<_>>().join("\n")
    });
    let ports = sample.total.nfs.iter().map(|(address, nfs)| port_line(sample, address, nfs));
    [title].into_iter().chain(ports).chain(exports).collect::<Vec<_>>().join("\n\n")
}

fn port_line(sample: &Sample, address: &str, nfs: &NfsCounters) -> String {
    let rate = rate(sample.recent.nfs.get(address).map_or(0, |recent| recent.calls), sample);
    let NfsCounters { connections, calls, refused, cut_off, .. } = nfs;
    let [received, sent] = [nfs.received_bytes, nfs.sent_bytes].map(mebibytes);
    format!(
        "nfs {address}  connections {connections}  calls {calls} ({rate:.0} per second)  \
         received {received:.1} MiB  sent {sent:.1} MiB  refused {refused}  cut off {cut_off}"
    )
}

fn disk_line(sample: &Sample, name: &str, under_way: u64) -> String {
    let seconds = sample.recent.seconds().max(f64::MIN_POSITIVE);
    let of = |operation: &str| {
        let recent = recent(sample, name, operation);
        recent.map_or((0.0, 0.0), |recent| (recent.count as f64 / seconds, mebibytes(recent.bytes) / seconds))
    };
    let ((reads, read), (writes, written)) = (of("read"), of("write"));
    format!(
        "IOPS {:.0}: {reads:.0} reads, {writes:.0} writes  MiB per second {:.1}: {read:.1} read, {written:.1} written  \
         under way {under_way}",
        reads + writes,
        read + written
    )
}

/// Formats the state of an NFS client, and its activity since the last sample.
fn client_lines(sample: &Sample, name: &str, total: &NfsClientCounters) -> String {
    let seconds = sample.recent.seconds().max(f64::MIN_POSITIVE);
    let recent = sample.recent.nfs_clients.get(name).copied().unwrap_or_default();
    let NfsClientCounters { in_flight, outstanding, waiting, calls, retransmissions, reconnects, .. } = total;
    let silence = match total.unresponsive_ns / 1_000_000_000 {
        0 => String::new(),
        seconds => format!("SERVER NOT RESPONDING for {seconds} s, still trying\n"),
    };
    let traffic = |bytes: fn(&NfsClientCounters) -> u64| {
        let (all, now) = (mebibytes(bytes(total)), mebibytes(bytes(&recent)) / seconds);
        format!("{all:.1} MiB ({now:.1} per second)")
    };
    let (round_trip_us, calls_per_second) = (total.round_trip_ns as f64 / 1e3, recent.calls as f64 / seconds);
    format!(
        "{silence}in-flight limit {in_flight}  outstanding {outstanding}  waiting {waiting}  \
         round trip {round_trip_us:.0} µs  calls {calls} ({calls_per_second:.0} per second)\n\
         sent {}  received {}  replies per wake-up {:.1}  \
         retransmitted {retransmissions}  reconnects {reconnects}",
        traffic(|of| of.sent_bytes),
        traffic(|of| of.received_bytes),
        recent.replies_per_turn(),
    )
}

/// Formats the totals of a cache, and its activity since the last sample.
fn cache_line(sample: &Sample, name: &str, total: &CacheCounters) -> String {
    let recent = sample.recent.caches.get(name).copied().unwrap_or_default();
    let sharing = match (total.borrowed_bytes, total.lent_bytes) {
        (0, 0) => String::new(),
        (borrowed, lent) => {
            format!("  borrowed {:.1} MiB, lent {:.1} MiB", mebibytes(borrowed), mebibytes(lent))
        }
    };
    let refused = match total.refused_bytes {
        0 => String::new(),
        bytes => {
            format!(
                "\n{:.1} MiB FROM ANOTHER CACHE OR FILE HAD A WRONG DIGEST: see the log",
                mebibytes(bytes)
            )
        }
    };
    let zeros = match (total.zero_bytes, total.equal_bytes) {
        (0, 0) => String::new(),
        (zeros, equal) => {
            format!(
                "  not fetched: zeroes {:.1} MiB, duplicates {:.1} MiB",
                mebibytes(zeros),
                mebibytes(equal)
            )
        }
    };
    let lease = match total.lease {
        None => "",
        Some(Lease::Held) => "  lease held",
        Some(Lease::RunOut) => "\nLEASE EXPIRED: close-to-open until it is renewed, not exclusive",
        Some(Lease::Lost) => "\nLEASE LOST to another proxy: close-to-open from now on, not exclusive",
        Some(Lease::NotGranted) => "  lease not held: close-to-open meanwhile",
    };
    format!(
        "cache  hits {} (now {})  data {:.1} MiB, {} from cache (now {})  fetched {:.1} MiB, \
         {:.1} MiB ahead and not read yet  passthrough files {} (now {}){zeros}{sharing}{lease}{refused}",
        share(total.hits, total.hits + total.misses),
        share(recent.hits, recent.hits + recent.misses),
        mebibytes(total.served_bytes),
        share(total.hit_bytes, total.served_bytes),
        share(recent.hit_bytes, recent.served_bytes),
        mebibytes(total.fetched_bytes),
        mebibytes(
            (total.guessed_bytes + total.traced_bytes)
                .saturating_sub(total.guess_used_bytes + total.trace_used_bytes)
        ),
        total.backed,
        recent.backed,
    )
}

/// Formats the changes that the origin lacks, and the failure, if any.
fn write_back_lines(state: &WriteBackState) -> String {
    let WriteBackState { dirty_nodes, change, on_disk, at_origin, conflicts, torn, failure, .. } = state;
    let failure = failure.as_ref().map(|failure| format!("\nWRITE-BACK FAILED, will be retried: {failure}"));
    let (unsent, oldest_s) = (mebibytes(state.dirty_bytes), state.oldest_ns as f64 / 1e9);
    format!(
        "write-back  {unsent:.1} MiB in {dirty_nodes} files and names unsent, the oldest for {oldest_s:.0} s  \
         change {change}, on the local disk {on_disk}, at the origin {at_origin}  conflicts {conflicts}  torn {torn}{}",
        failure.unwrap_or_default(),
    )
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn share(part: u64, all: u64) -> String {
    if all == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / all as f64) }
}

/// Formats the totals of each operation, then its rate and latency since the last sample.
fn operations_table(sample: &Sample, export: &str, total: &Snapshot) -> String {
    let idle = Operation::default();
    let rows = by_total_time(total).into_iter().map(|total| {
        let recent = recent(sample, export, &total.name).unwrap_or(&idle);
        let micros = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| format!("{:.1}", ns as f64 / 1e3));
        vec![
            total.name.clone(),
            format!("{:.3}", total.total_ns as f64 / 1e9),
            total.count.to_string(),
            total.errors.to_string(),
            if total.bytes > 0 { format!("{:.1}", mebibytes(total.bytes)) } else { String::new() },
            format!("{:.0}", rate(recent.count, sample)),
            micros(mean_ns(recent)),
            micros(recent.quantile_ns(0.5)),
            micros(recent.quantile_ns(0.99)),
        ]
    });
    table(HEADER, rows, 1)
}

fn server_json(sample: &Sample) -> Value {
    let exports = sample.total.exports.iter().map(|(name, total)| {
        let operations = by_total_time(total).into_iter().map(|total| operation_json(sample, name, total));
        let operations: Vec<_> = operations.collect();
        match total.under_way {
            Some(under_way) => json!({ "name": name, "under_way": under_way, "operations": operations }),
            None => json!({ "name": name, "operations": operations }),
        }
    });
    json!({
        "socket": sample.socket,
        "status": sample.status,
        "uptime_s": sample.total.seconds(),
        "interval_s": sample.recent.seconds(),
        "exports": exports.collect::<Vec<_>>(),
        "nfs": sample.total.nfs,
        "nfs_clients": sample.total.nfs_clients,
        "caches": sample.total.caches,
        "write_backs": sample.total.write_backs,
    })
}

fn operation_json(sample: &Sample, export: &str, total: &Operation) -> Value {
    let idle = Operation::default();
    let recent = recent(sample, export, &total.name).unwrap_or(&idle);
    json!({
        "operation": total.name,
        "total_s": total.total_ns as f64 / 1e9,
        "count": total.count,
        "errors": total.errors,
        "bytes": total.bytes,
        "per_second": rate(recent.count, sample),
        "mean_ns": mean_ns(recent),
        "p50_ns": recent.quantile_ns(0.5),
        "p99_ns": recent.quantile_ns(0.99),
    })
}

fn by_total_time(total: &Snapshot) -> Vec<&Operation> {
    let mut operations: Vec<_> = total.operations.iter().collect();
    operations.sort_by_key(|operation| Reverse(operation.total_ns));
    operations
}

fn recent<'a>(sample: &'a Sample, export: &str, operation: &str) -> Option<&'a Operation> {
    sample.recent.exports.get(export)?.operation(operation)
}

fn rate(recent_count: u64, sample: &Sample) -> f64 {
    let seconds = sample.recent.seconds();
    if seconds > 0.0 { recent_count as f64 / seconds } else { 0.0 }
}

/// Returns the mean latency; `None` if no call was timed.
fn mean_ns(recent: &Operation) -> Option<u64> {
    recent.histogram.iter().any(|(_, count)| *count > 0).then(|| recent.mean_ns())
}
