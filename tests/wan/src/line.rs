//! A thread that forwards packets in one direction.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::profile::Profile;
use crate::shaper::Shaper;

/// State shared by both directions and their owner.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub is_over: AtomicBool,
    /// `true`: all packets are dropped.
    pub is_down: AtomicBool,
    /// Number of packets forwarded, and of those that were late.
    pub carried: AtomicU64,
    pub late: AtomicU64,
}

/// Delay from which a packet counts as late.
const LATE: Duration = Duration::from_millis(2);

/// Maximum time until a thread notices that it must end.
const PAUSE: Duration = Duration::from_millis(50);

/// Maximum size of a packet.
const PACKET_BYTES: usize = 65_536;

pub(crate) fn start(
    name: &str,
    (from, to): (Arc<OwnedFd>, Arc<OwnedFd>),
    profile: &Profile,
    shared: &Arc<Shared>,
) -> std::io::Result<JoinHandle<()>> {
    let (mut shaper, shared) = (Shaper::new(profile, name.len() as u64), shared.clone());
    thread::Builder::new().name(name.into()).spawn(move || {
        // A link does not slow down when the programs at its ends occupy the processors. Without the
        // privilege, late packets are counted.
        let _ = tombolo_sys::scheduling::run_realtime();
        // High-resolution timers for this thread.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let start = Instant::now();
        let mut buffer = vec![0; PACKET_BYTES];
        while !shared.is_over.load(Ordering::Relaxed) {
            let now = start.elapsed().as_nanos() as u64;
            if shared.is_down.load(Ordering::Relaxed) {
                shaper.clear();
            }
            while let Some((due, packet)) = shaper.pop(now) {
                shared.carried.fetch_add(1, Ordering::Relaxed);
                let late = u64::from(u128::from(now - due) > LATE.as_nanos());
                shared.late.fetch_add(late, Ordering::Relaxed);
                // A full device drops packets, as any does.
                let _ = rustix::io::write(&*to, &packet);
            }
            let wait = shaper.next_due_ns().map_or(PAUSE, |due| {
                let left = due.saturating_sub(start.elapsed().as_nanos() as u64);
                PAUSE.min(Duration::from_nanos(left))
            });
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
            let _ = poll(&mut [PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN)], Some(&timeout));
            take_in(&from, &mut buffer, |packet| {
                let now = start.elapsed().as_nanos() as u64;
                shaper.push(now, packet.to_vec());
            });
        }
    })
}

/// Reads all available packets.
fn take_in(from: &OwnedFd, buffer: &mut [u8], mut take: impl FnMut(&[u8])) {
    loop {
        match rustix::io::read(from, &mut *buffer) {
            Ok(len) => take(buffer.get(..len).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
