//! How long it takes to take a span and give it back: `cargo bench -p tombolo-shm --bench area`.

#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::hint::black_box;
use std::time::Instant;

use tombolo_shm::area::{Area, Span};

const BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;

fn main() {
    println!("{:>10} {:>12} {:>12} {:>12}   ns, median of 9", "bytes", "empty", "half full", "checkered");
    for len in [64, 1000, 4096, 128 << 10, 1 << 20] {
        let empty = Area::new(0..BYTES);
        let half_full = Area::new(0..BYTES);
        let _half = half_full.take(BYTES / 2).expect("room");
        let checkered = Area::new(0..BYTES);
        let mut all: Vec<Option<Span>> =
            (0..BYTES / 2 / PAGE).map(|_| Some(checkered.take(PAGE).expect("room"))).collect();
        all.iter_mut().step_by(2).for_each(|span| *span = None);
        let times = [&empty, &half_full, &checkered].map(|area| time(area, len));
        println!("{len:>10} {:>12.1} {:>12.1} {:>12.1}", times[0], times[1], times[2]);
    }
}

fn time(area: &Area, len: u64) -> f64 {
    const TIMES: u32 = 20_000;
    let mut rounds: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            (0..TIMES).for_each(|_| drop(black_box(area.take(black_box(len)))));
            start.elapsed().as_nanos() as f64 / f64::from(TIMES)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[4]
}
