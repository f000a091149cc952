//! Random operations, compared with an array of bytes.

use fastrand::Rng;
use tombolo_core::Stability;
use tombolo_core::block::Zeroing;

use super::bench::{pattern, range};
use super::{Bench, SIZE_BYTES};

super::table! { random_operations_leave_what_an_array_of_bytes_would_hold }

const STEPS: u64 = 1500;
const SECTOR_BYTES: u64 = 512;

/// Expected content of a sector; `None` if it was discarded.
type Sector = Option<Vec<u8>>;

fn random_operations_leave_what_an_array_of_bytes_would_hold(bench: &Bench) {
    let given = std::env::var("TOMBOLO_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let mut random = Rng::with_seed(seed);
    let mut model: Vec<Sector> =
        vec![Some(vec![0; SECTOR_BYTES as usize]); (SIZE_BYTES / SECTOR_BYTES) as usize];
    for step in 0..STEPS {
        let told = Step { bench, seed, step };
        told.walk(&mut random, &mut model);
    }
    Step { bench, seed, step: STEPS }.check(0, &model);
    bench.check_extents(range(0, SIZE_BYTES));
}

struct Step<'a> {
    bench: &'a Bench,
    seed: u64,
    step: u64,
}

impl Step<'_> {
    fn walk(&self, random: &mut Rng, model: &mut [Sector]) {
        let bench = self.bench;
        let first = random.usize(..model.len());
        // Mostly short, some long.
        let longest = if random.usize(..8) == 0 { 1024 } else { 24 };
        let count = (1 + random.usize(..longest)).min(model.len() - first);
        let (offset, len) = (first as u64 * SECTOR_BYTES, count as u64 * SECTOR_BYTES);
        let sectors = &mut model[first..first + count];
        let stability = if random.usize(..8) == 0 { Stability::DataSync } else { Stability::Unstable };
        let done = match random.usize(..10) {
            0..4 => {
                let bytes = pattern(self.step, len);
                let done = bench.write_stable(offset, &bytes, stability);
                for (sector, bytes) in sectors.iter_mut().zip(bytes.chunks(SECTOR_BYTES as usize)) {
                    *sector = Some(bytes.to_vec());
                }
                done
            }
            4 | 5 => {
                sectors.fill(Some(vec![0; SECTOR_BYTES as usize]));
                let how = Zeroing { may_unmap: random.bool(), only_fast: false, stability };
                bench.write_zeroes(range(offset, len), how)
            }
            6 => {
                sectors.fill(None);
                bench.discard(range(offset, len))
            }
            7 => bench.flush(),
            8 => {
                bench.check_extents(range(offset, len));
                Ok(())
            }
            _ => {
                self.check(offset, sectors);
                Ok(())
            }
        };
        assert!(done.is_ok(), "{}: {done:?}", self.told());
    }

    /// Asserts that the disk has these sectors at `offset`.
    fn check(&self, offset: u64, sectors: &[Sector]) {
        let bytes = self.bench.read(offset, sectors.len() as u64 * SECTOR_BYTES).expect("read");
        for (index, (sector, found)) in sectors.iter().zip(bytes.chunks(SECTOR_BYTES as usize)).enumerate() {
            let at = offset + index as u64 * SECTOR_BYTES;
            assert!(
                sector.as_ref().is_none_or(|sector| sector == found),
                "{}: other bytes at {at}",
                self.told()
            );
        }
    }

    fn told(&self) -> String {
        format!("TOMBOLO_SEED={}, step {}", self.seed, self.step)
    }
}
