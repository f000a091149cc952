//! Properties of links.

/// A link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Capacity of each direction, in bits per second.
    pub rate_bits_per_s: u64,
    /// Round-trip time in microseconds, without queueing.
    pub round_trip_us: u64,
    /// Mean number of packets per lost one; 0: none is lost.
    pub lost_one_in: u32,
    /// Maximum window of TCP, in bytes; 0: autotuned by the kernel.
    pub window_bytes: u32,
    /// Congestion control of both ends: `bbr` or `reno`, as Linux does not let a namespace choose cubic by
    /// default.
    pub congestion: &'static str,
}

const fn profile(name: &'static str, megabits: u64, round_trip_us: u64, lost_one_in: u32) -> Profile {
    let rate_bits_per_s = megabits * 1_000_000;
    Profile { name, rate_bits_per_s, round_trip_us, lost_one_in, window_bytes: 0, congestion: "bbr" }
}

impl Profile {
    /// 80 Mbit/s and 35 ms: the link of the benchmarks.
    pub const WAN: Self = profile("80M35", 80, 35_000, 0);
    /// A network in one building.
    pub const LAN: Self = profile("lan", 1000, 300, 0);

    /// All links.
    pub const ALL: [Self; 11] = [
        Self::WAN,
        profile("50M30", 50, 30_000, 0),
        profile("50M40", 50, 40_000, 0),
        profile("100M30", 100, 30_000, 0),
        profile("100M40", 100, 40_000, 0),
        profile("100M40-0.01", 100, 40_000, 10_000),
        profile("100M40-0.1", 100, 40_000, 1_000),
        profile("50M30-0.1", 50, 30_000, 1_000),
        // Windows as usual when the paper was written.
        Self { window_bytes: 64 << 10, ..profile("2004", 80, 35_000, 0) },
        profile("lan100", 100, 300, 0),
        Self::LAN,
    ];

    /// Returns the link of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// Returns the size of the queue in bytes: the bandwidth-delay product, but at least a few packets.
    pub fn queue_bytes(&self) -> u64 {
        (self.rate_bits_per_s / 8 * self.round_trip_us / 1_000_000).max(64 << 10)
    }
}
