//! How fast bytes move between private and shared memory, beside a plain `memcpy`: `cargo bench -p tombolo-mem`.

#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::hint::black_box;
use std::time::Instant;
use tombolo_mem::{Buffer, Region, Source};

fn main() {
    println!(
        "{:>9} {:>12} {:>12} {:>12} {:>12}   ns, median of 9",
        "bytes", "memcpy", "read_at", "write_at", "to a sink"
    );
    for len in [8, 40, 104, 128, 256, 384, 512, 1024, 4096, 65_536, 1 << 20] {
        let (from, to) = (Region::heap(len), Buffer::new(len));
        let (source, sink) = (Source::from(&from), to.sink(0..len));
        let (mut private, other) = (vec![0u8; len], vec![1u8; len]);
        let memcpy = time(len, || private.copy_from_slice(black_box(&other)));
        let read = time(len, || _ = black_box(source.read_at(0, black_box(&mut private))));
        let write = time(len, || _ = black_box(sink.write_at(0, black_box(&other))));
        let across = time(len, || _ = black_box(source.copy_to_sink(&sink)));
        println!("{len:>9} {memcpy:>12.1} {read:>12.1} {write:>12.1} {across:>12.1}");
    }
}

/// Nanoseconds for one call: the median of nine rounds.
fn time(len: usize, mut call: impl FnMut()) -> f64 {
    let rounds = (50_000_000 / (len + 500)).max(20);
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / rounds as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[4]
}
