//! Latency of waking a thread on another core, which can dominate a guest's time on a shared directory.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_sys::affinity;

use super::Finding;

const NAME: &str = "wake-ups";
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
const ROUND_TRIPS: usize = 500;
/// Round-trip time between cores from which wake-ups are reported as slow: a guest with one outstanding
/// request then mostly spends more time on them than on service.
const SLOW: Duration = Duration::from_micros(25);

pub(super) fn finding() -> Finding {
    let cores = affinity::cores(None).unwrap_or_default();
    let [first, second, ..] = *cores.as_slice() else {
        return Finding::ok(NAME, "not applicable: single core");
    };
    let (Some(one), Some(two)) = (round_trip(first, first), round_trip(first, second)) else {
        return Finding::ok(NAME, "not measured: threads cannot be pinned");
    };
    let [one_us, two_us] = [one, two].map(|took| took.as_secs_f64() * 1e6);
    let found = format!("request round trip: {one_us:.0} µs on one core, {two_us:.0} µs between cores");
    if two < SLOW {
        return Finding::ok(NAME, found);
    }
    // Idle virtual cores halt, and the hypervisor wakes them, unless they poll first.
    let mend = if Path::new(HALT_POLL).exists() {
        format!("let idle cores poll before halting: echo 200000 > {HALT_POLL}")
    } else {
        "keep idle cores awake (tuned-adm profile latency-performance), or pin guest and server to one core"
            .to_owned()
    };
    Finding::warn(NAME, found, mend)
}

/// Returns the median round-trip time of a byte between threads on these cores; `None` if they cannot be
/// pinned.
fn round_trip(caller: usize, server: usize) -> Option<Duration> {
    let (mut ours, mut theirs) = UnixStream::pair().ok()?;
    // The server's thread ends once the caller's thread has ended and thereby closed the other socket.
    thread::spawn(move || {
        affinity::pin(None, &[server]).ok()?;
        let mut byte = [0];
        while theirs.read_exact(&mut byte).and_then(|()| theirs.write_all(&byte)).is_ok() {}
        Some(())
    });
    let caller = thread::spawn(move || {
        affinity::pin(None, &[caller]).ok()?;
        let mut once = || {
            let since = Instant::now();
            ours.write_all(&[0]).and_then(|()| ours.read_exact(&mut [0])).ok().map(|()| since.elapsed())
        };
        let mut took = (0..ROUND_TRIPS).map(|_| once()).collect::<Option<Vec<_>>>()?;
        took.sort_unstable();
        took.get(ROUND_TRIPS / 2).copied()
    });
    caller.join().ok()?
}
