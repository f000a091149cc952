//! What a line is like.

/// One line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// What it is called.
    pub name: &'static str,
    /// What each direction carries, in bits a second.
    pub rate_bits_per_s: u64,
    /// From one end to the other and back, in microseconds, without what waits.
    pub round_trip_us: u64,
    /// Of so many packets one is lost; 0: none.
    pub lost_one_in: u32,
    /// The largest window that TCP uses, in bytes; 0: what the kernel finds.
    pub window_bytes: u32,
    /// The congestion control of both ends: `bbr` or `reno`, as Linux lets no namespace choose cubic by
    /// default.
    pub congestion: &'static str,
}

const fn profile(name: &'static str, megabits: u64, round_trip_us: u64, lost_one_in: u32) -> Profile {
    let rate_bits_per_s = megabits * 1_000_000;
    Profile { name, rate_bits_per_s, round_trip_us, lost_one_in, window_bytes: 0, congestion: "bbr" }
}

impl Profile {
    /// 80 Mbit/s and 35 ms: the line of the benchmarks.
    pub const WAN: Self = profile("80M35", 80, 35_000, 0);
    /// A network in one building.
    pub const LAN: Self = profile("lan", 1000, 300, 0);

    /// All lines.
    pub const ALL: [Self; 11] = [
        Self::WAN,
        profile("50M30", 50, 30_000, 0),
        profile("50M40", 50, 40_000, 0),
        profile("100M30", 100, 30_000, 0),
        profile("100M40", 100, 40_000, 0),
        profile("100M40-0.01", 100, 40_000, 10_000),
        profile("100M40-0.1", 100, 40_000, 1_000),
        profile("50M30-0.1", 50, 30_000, 1_000),
        // Windows as they were when the paper was written.
        Self { window_bytes: 64 << 10, ..profile("2004", 80, 35_000, 0) },
        profile("lan100", 100, 300, 0),
        Self::LAN,
    ];

    /// The line of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// What is under way on a line that is full, in bytes; at least a few packets.
    pub fn queue_bytes(&self) -> u64 {
        (self.rate_bits_per_s / 8 * self.round_trip_us / 1_000_000).max(64 << 10)
    }
}
