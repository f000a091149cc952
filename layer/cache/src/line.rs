//! Bandwidth-delay product of the connection to the origin, measured by recent fetches. That many bytes in
//! flight keep the connection busy; more would only delay other requests. Read-ahead and prefetches ask
//! [`Line`] how much to request.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tombolo_core::fs::COMPRESSED_RTT_MIN;
use tombolo_core::lock;

/// Measurements of the connection to the origin.
#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of bytes requested and not yet received.
    in_flight_bytes: u64,
    /// Start of the current measuring period, and the bytes received in it.
    period: Option<Instant>,
    period_bytes: u64,
    /// Rates of the last periods, in bytes per second.
    rates: VecDeque<f64>,
    /// Mean round-trip time of fetches with little queued before them, without the transfer time of their
    /// data.
    delay: Option<Duration>,
    /// A flag for each of the last small answers: `true` if it took [`COMPRESSED_RTT_MIN`] or longer.
    far: VecDeque<bool>,
}

/// A fetch in progress, as recorded by [`Line::sent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    at: Instant,
    bytes: u64,
    /// Bytes in flight before the fetch was sent.
    before_bytes: u64,
}

/// Part of the window that does not depend on the measurement, in bytes: one READ of the maximum size.
const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// Maximum of background bytes in flight before the first measurement, which takes only a few fetches.
const UNKNOWN_BYTES: u64 = WINDOW_BYTES_MIN / 2;

/// Minimum length of a measuring period while bytes are in flight; and number of periods of which the highest
/// rate counts.
const PERIOD: Duration = Duration::from_millis(100);
const RATES: usize = 8;

/// Maximum size of a small answer, which 1 Gbit/s transfers in 2 ms; and number of answers remembered.
const LITTLE_BYTES: u64 = 256 << 10;
const ANSWERS: usize = 16;
/// Minimum number of answers to judge by: slowness of fewer may only show a busy processor.
const ANSWERS_MIN: usize = 4;

impl Line {
    /// Records a request for this many bytes.
    pub(crate) fn sent(&self, bytes: u64, now: Instant) -> Sent {
        let mut state = lock(&self.0);
        let sent = Sent { at: now, bytes, before_bytes: state.in_flight_bytes };
        state.in_flight_bytes += bytes;
        state.period.get_or_insert(now);
        sent
    }

    /// Records the end of a request, and the bytes received.
    pub(crate) fn came(&self, sent: Sent, bytes: u64, now: Instant) {
        let mut state = lock(&self.0);
        state.in_flight_bytes -= sent.bytes;
        state.period_bytes += bytes;
        let lasted = now.saturating_duration_since(state.period.unwrap_or(now));
        if state.in_flight_bytes == 0 || lasted >= PERIOD {
            let rate = state.period_bytes as f64 / lasted.as_secs_f64().max(1e-6);
            state.rates.push_back(rate);
            if state.rates.len() > RATES {
                state.rates.pop_front();
            }
            state.period_bytes = 0;
            state.period = (state.in_flight_bytes > 0).then_some(now);
        }
        if (1..=LITTLE_BYTES).contains(&bytes) {
            state.answered(now.saturating_duration_since(sent.at));
        }
        // The delay of a fetch queued behind others would include their transfer.
        if bytes > 0 && sent.before_bytes <= state.product().max(WINDOW_BYTES_MIN / 2) {
            let rate = state.rate();
            let own = if rate > 0.0 { Duration::from_secs_f64(bytes as f64 / rate) } else { Duration::ZERO };
            let delay = now.saturating_duration_since(sent.at).saturating_sub(own);
            state.delay = Some(state.delay.map_or(delay, |before| (before * 3 + delay) / 4));
        }
    }

    /// Returns the maximum of bytes in flight with read-ahead: [`WINDOW_BYTES_MIN`] and twice the measured
    /// product, as the measurement lags.
    pub(crate) fn window_bytes(&self) -> u64 {
        lock(&self.0).window_bytes()
    }

    /// Returns the bytes to have in flight for background fetches: just enough to keep the connection busy,
    /// so that other requests queue briefly.
    pub(crate) fn trickle_bytes(&self) -> u64 {
        let product = lock(&self.0).product();
        if product == 0 { UNKNOWN_BYTES } else { product.saturating_add(WINDOW_BYTES_MIN / 4) }
    }

    /// Returns the number of bytes of read-ahead that may be requested now, in addition to all bytes in
    /// flight.
    pub(crate) fn room_bytes(&self) -> u64 {
        let state = lock(&self.0);
        state.window_bytes().saturating_sub(state.in_flight_bytes)
    }

    /// Records the duration of a small answer.
    pub(crate) fn answered(&self, took: Duration) {
        lock(&self.0).answered(took);
    }

    /// Returns `true` if most of the last small answers took [`COMPRESSED_RTT_MIN`] or longer.
    pub(crate) fn is_far(&self) -> bool {
        let state = lock(&self.0);
        let far = state.far.iter().filter(|is_far| **is_far).count();
        state.far.len() >= ANSWERS_MIN && far * 2 > state.far.len()
    }
}

impl State {
    fn answered(&mut self, took: Duration) {
        self.far.push_back(took >= COMPRESSED_RTT_MIN);
        if self.far.len() > ANSWERS {
            self.far.pop_front();
        }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    fn product(&self) -> u64 {
        (self.rate() * self.delay.unwrap_or_default().as_secs_f64()) as u64
    }

    fn window_bytes(&self) -> u64 {
        self.product().saturating_mul(2).saturating_add(WINDOW_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    /// Simulates a connection of this rate and delay with a reader that fills the window. Returns the window
    /// at the end.
    fn read_over(line: &Line, rate: f64, delay: Duration, seconds: u64) -> u64 {
        let begin = Instant::now();
        let (mut now, mut free_at, mut under_way) = (begin, begin, VecDeque::new());
        while now < begin + Duration::from_secs(seconds) {
            while under_way.is_empty() || line.room_bytes() >= MB / 4 {
                let sent = line.sent(MB / 4, now);
                free_at = free_at.max(now + delay) + Duration::from_secs_f64((MB / 4) as f64 / rate);
                under_way.push_back((sent, free_at));
            }
            let (sent, at) = under_way.pop_front().expect("one is under way");
            now = at;
            line.came(sent, MB / 4, now);
        }
        let most = line.window_bytes();
        under_way.into_iter().for_each(|(sent, at)| line.came(sent, MB / 4, at));
        most
    }

    #[test]
    fn the_window_is_what_keeps_the_line_busy() {
        for (rate, delay_ms) in [(10e6, 35), (125e6, 1), (125e6, 35), (1e6, 200)] {
            let (line, delay) = (Line::default(), Duration::from_millis(delay_ms));
            let window = read_over(&line, rate, delay, 30) as f64;
            let product = rate * delay.as_secs_f64();
            assert!(window >= product + MB as f64 / 2.0, "{window} for {product}");
            assert!(window <= 3.0 * product + 2.0 * MB as f64, "{window} for {product}");
        }
    }

    #[test]
    fn a_line_that_gets_slower_is_noticed() {
        let line = Line::default();
        let fast = read_over(&line, 125e6, Duration::from_millis(35), 5);
        let slow = read_over(&line, 2e6, Duration::from_millis(35), 20);
        assert!(slow < fast / 2, "{slow} after {fast}");
    }

    #[test]
    fn connection_with_slow_single_page_answers_is_distant() {
        for (took_ms, is_far) in [(35, true), (1, false)] {
            let (line, mut now) = (Line::default(), Instant::now());
            for n in 0..100 {
                assert_eq!(line.is_far(), is_far && n >= ANSWERS_MIN);
                let sent = line.sent(4096, now);
                now += Duration::from_millis(took_ms);
                line.came(sent, 4096, now);
            }
        }
    }

    #[test]
    fn pending_requests_fill_the_window() {
        let (line, now) = (Line::default(), Instant::now());
        let sent = line.sent(WINDOW_BYTES_MIN, now);
        assert_eq!(line.room_bytes(), 0);
        line.came(sent, 0, now + Duration::from_secs(9));
        assert_eq!(line.room_bytes(), WINDOW_BYTES_MIN, "what failed measures nothing");
    }
}
