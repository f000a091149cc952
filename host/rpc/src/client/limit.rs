//! In-flight limit of bulk calls.

use std::time::{Duration, Instant};

use super::adaptive_limit::AdaptiveLimit;
use super::options::InFlight;

/// In-flight limit of a client, fixed or adaptive.
#[derive(Clone, Debug)]
pub(super) enum Limit {
    Fixed(u32),
    Adaptive(Box<AdaptiveLimit>),
}

impl Limit {
    pub(super) fn new(mode: InFlight) -> Self {
        match mode {
            InFlight::Fixed(count) => Self::Fixed(count.max(1)),
            InFlight::Adaptive { max } => Self::Adaptive(Box::new(AdaptiveLimit::new(max))),
        }
    }

    pub(super) fn count(&self) -> u32 {
        match self {
            Self::Fixed(count) => *count,
            Self::Adaptive(adaptive) => adaptive.limit(),
        }
    }

    /// Records a bulk call that moves `bytes`.
    pub(super) fn begun(&mut self, bytes: usize) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.begun(bytes);
        }
    }

    pub(super) fn filled(&mut self) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.filled();
        }
    }

    /// Records the answer to a bulk call.
    pub(super) fn answered(&mut self, now: Instant, bytes: usize, took: Duration) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.answered(now, bytes, took);
        }
    }

    /// Records a lost call or answer.
    pub(super) fn lost(&mut self) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.lost();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    /// A simulated path: a client that prepares one call at a time, a network that carries one at a time, a
    /// server with some workers, and the return path.
    #[derive(Clone, Copy)]
    struct Path {
        name: &'static str,
        call_bytes: usize,
        client_us: f64,
        bytes_per_us: f64,
        latency_us: f64,
        server_us: f64,
        workers: usize,
        /// Number of calls from which each takes longer, as caches overflow.
        crowd: u32,
        /// Relative variation of times.
        noise: f64,
    }

    const PATH: Path = Path {
        name: "",
        call_bytes: 1 << 20,
        client_us: 150.0,
        bytes_per_us: 1e9,
        latency_us: 15.0,
        server_us: 250.0,
        workers: 1,
        crowd: u32::MAX,
        noise: 0.1,
    };

    /// Makes calls as fast as the limit allows. Returns the rate in bytes per microsecond, and the limits
    /// during the second half.
    fn run(path: &Path, mode: InFlight, time_us: f64, seed: u64) -> (f64, Vec<u32>) {
        let (mut limit, mut random) = (Limit::new(mode), fastrand::Rng::with_seed(seed));
        let start = Instant::now();
        let (mut client_free, mut link_free, mut servers) = (0.0, 0.0, vec![0.0_f64; path.workers]);
        let mut answers: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
        let (mut now, mut moved, mut limits) = (0.0, 0, Vec::new());
        while now < time_us {
            while (answers.len() as u32) < limit.count() {
                let crowd = if answers.len() as u32 >= path.crowd { 1.4 } else { 1.0 };
                let mut vary = |time: f64| time * crowd * (1.0 + path.noise * (2.0 * random.f64() - 1.0));
                client_free = f64::max(client_free, now) + vary(path.client_us);
                link_free = f64::max(client_free, link_free) + path.call_bytes as f64 / path.bytes_per_us;
                let worker = servers.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("a worker");
                *worker = f64::max(*worker, link_free + path.latency_us) + vary(path.server_us);
                let done = *worker + path.latency_us;
                answers.push(Reverse(((done * 1000.0) as u64, (now * 1000.0) as u64)));
                limit.begun(path.call_bytes);
                if answers.len() as u32 >= limit.count() {
                    limit.filled();
                }
            }
            let Reverse((done, sent)) = answers.pop().expect("an answer");
            now = done as f64 / 1000.0;
            moved += path.call_bytes;
            let took = Duration::from_nanos(done - sent);
            limit.answered(start + Duration::from_nanos(done), path.call_bytes, took);
            if now > time_us / 2.0 {
                limits.push(limit.count());
            }
        }
        (moved as f64 / now, limits)
    }

    fn paths() -> Vec<Path> {
        let small = Path { call_bytes: 32 << 10, client_us: 12.0, server_us: 15.0, ..PATH };
        vec![
            Path { name: "loopback, 1 MiB", ..PATH },
            Path { name: "loopback, 32 KiB", ..small },
            Path { name: "loopback, caches", crowd: 12, ..PATH },
            Path { name: "loopback, small caches", crowd: 3, ..PATH },
            Path { name: "loopback, noise", noise: 0.5, ..PATH },
            Path { name: "1 Gbit/s, 1 MiB", bytes_per_us: 125.0, latency_us: 100.0, ..PATH },
            Path { name: "1 Gbit/s, 32 KiB", bytes_per_us: 125.0, latency_us: 100.0, ..small },
            Path { name: "10 Gbit/s, 1 MiB", bytes_per_us: 1250.0, latency_us: 50.0, ..PATH },
            Path { name: "10 Gbit/s, 32 KiB", bytes_per_us: 1250.0, latency_us: 50.0, ..small },
            Path { name: "1 Gbit/s, far", bytes_per_us: 125.0, latency_us: 8_000.0, ..small },
            Path { name: "a slow disk", server_us: 8_000.0, workers: 16, ..PATH },
        ]
    }

    #[test]
    fn an_adaptive_limit_comes_near_the_best_fixed_one() {
        const TIME_US: f64 = 1.5e6;
        let mut report = Vec::new();
        for path in paths() {
            let fixed = [1, 2, 4, 8, 16, 32, 64].map(|n| run(&path, InFlight::Fixed(n), TIME_US / 2.0, 1).0);
            let best = fixed.into_iter().fold(0.0, f64::max);
            let mut ratios = Vec::new();
            for seed in 1..=6 {
                let (rate, limits) = run(&path, InFlight::Adaptive { max: 128 }, TIME_US, seed);
                ratios.push((rate / best, limits.iter().sum::<u32>() / limits.len().max(1) as u32));
            }
            let worst = ratios.iter().map(|(ratio, _)| *ratio).fold(f64::MAX, f64::min);
            report.push((path.name, worst, ratios));
        }
        let bad: Vec<_> = report.iter().filter(|(_, worst, _)| *worst < 0.9).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    #[test]
    fn adaptive_limit_bounds_queueing_delay() {
        let path = Path { name: "", bytes_per_us: 125.0, latency_us: 100.0, ..PATH };
        let (_, limits) = run(&path, InFlight::Adaptive { max: 128 }, 20e6, 3);
        let last = limits[limits.len() - 1];
        assert!(last <= 16, "{last} calls of 8 ms each wait in line");
    }

    #[test]
    fn losses_of_one_round_trip_halve_the_limit_once() {
        let mut limit = Limit::new(InFlight::Adaptive { max: 64 });
        assert_eq!(limit.count(), 4);
        limit.begun(1);
        assert_eq!(limit.count(), 16);
        limit.lost();
        limit.lost();
        let now = Instant::now();
        (0..15).for_each(|_| limit.answered(now, 1, Duration::from_millis(1)));
        limit.lost();
        assert_eq!(limit.count(), 8, "the sixteenth call was made before the first loss");
        limit.answered(now, 1, Duration::from_millis(1));
        limit.lost();
        assert_eq!(limit.count(), 4);
    }

    #[test]
    fn a_client_below_its_limit_does_not_change_it() {
        let mut limit = Limit::new(InFlight::Adaptive { max: 64 });
        let start = Instant::now();
        for at in 0..1000 {
            limit.answered(start + Duration::from_millis(at), 1000, Duration::from_millis(1));
        }
        assert_eq!(limit.count(), 4);
    }
}
