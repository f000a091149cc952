//! One direction of a link, without I/O: packets enter, and leave when they are due. Times are nanoseconds of
//! any monotonic clock.

use std::collections::VecDeque;

use crate::profile::Profile;

/// One direction of a link: its limits, and the packets on their way.
#[derive(Debug)]
pub(crate) struct Shaper {
    rate_bits_per_s: u64,
    delay_ns: u64,
    queue_bytes: u64,
    lost_one_in: u32,
    random: fastrand::Rng,
    /// Time until which the link is busy with earlier packets.
    busy_until_ns: u64,
    under_way: VecDeque<(u64, Vec<u8>)>,
    dropped: u64,
}

impl Shaper {
    pub(crate) fn new(profile: &Profile, seed: u64) -> Self {
        Self {
            rate_bits_per_s: profile.rate_bits_per_s,
            delay_ns: profile.round_trip_us * 500,
            queue_bytes: profile.queue_bytes(),
            lost_one_in: profile.lost_one_in,
            random: fastrand::Rng::with_seed(seed),
            busy_until_ns: 0,
            under_way: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Accepts a packet at this end; `false` if it is dropped.
    pub(crate) fn push(&mut self, now_ns: u64, packet: Vec<u8>) -> bool {
        let waiting_ns = self.busy_until_ns.saturating_sub(now_ns);
        let waiting_bytes = waiting_ns * (self.rate_bits_per_s / 8) / 1_000_000_000;
        let is_lost = self.lost_one_in > 0 && self.random.u32(..self.lost_one_in) == 0;
        if is_lost || waiting_bytes + packet.len() as u64 > self.queue_bytes {
            self.dropped += 1;
            return false;
        }
        let takes_ns = packet.len() as u64 * 8 * 1_000_000_000 / self.rate_bits_per_s;
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + takes_ns;
        self.under_way.push_back((self.busy_until_ns + self.delay_ns, packet));
        true
    }

    /// Returns when the next packet is due at the other end.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.under_way.front().map(|(due, _)| *due)
    }

    /// Returns a due packet, with the time at which it was due.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<(u64, Vec<u8>)> {
        self.under_way.pop_front_if(|(due, _)| *due <= now_ns)
    }

    /// Drops all packets in flight.
    pub(crate) fn clear(&mut self) {
        self.dropped += self.under_way.len() as u64;
        self.under_way.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaper(lost_one_in: u32) -> Shaper {
        Shaper::new(&Profile { lost_one_in, ..Profile::WAN }, 1)
    }

    #[test]
    fn packets_arrive_in_order_with_delay_and_rate() {
        let mut shaper = shaper(0);
        for number in 0..100_u8 {
            assert!(shaper.push(0, vec![number; 1000]));
        }
        assert!(shaper.pop(17_500_000).is_none());
        for number in 0..100_u8 {
            // 1,000 bytes take 100 µs at 80 Mbit/s.
            let due = 17_500_000 + (u64::from(number) + 1) * 100_000;
            assert_eq!(shaper.next_due_ns(), Some(due));
            assert!(shaper.pop(due - 1).is_none());
            assert_eq!(shaper.pop(due), Some((due, vec![number; 1000])));
        }
        assert_eq!(shaper.next_due_ns(), None);
    }

    #[test]
    fn packets_beyond_the_queue_are_dropped() {
        let mut shaper = shaper(0);
        let taken = (0..1000).filter(|_| shaper.push(0, vec![0; 1000])).count() as u64;
        assert_eq!(taken, Profile::WAN.queue_bytes() / 1000);
        // One packet's time later the queue has space for one.
        assert!(!shaper.push(10_000, vec![0; 1000]) && shaper.push(101_000, vec![0; 1000]));
    }

    #[test]
    fn packets_are_lost_at_the_configured_rate() {
        let mut shaper = shaper(100);
        let lost = (0..100_000_u64).filter(|n| !shaper.push(n * 1_000_000, vec![0; 100])).count();
        assert!((800..1200).contains(&lost), "{lost}");
    }
}
