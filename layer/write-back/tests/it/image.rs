//! A large file that stays open, is changed in places and read, like a VM's disk.

use crate::restart::pattern;
use crate::world::Origin;

#[test]
fn sending_a_large_file_refetches_only_written_parts() {
    let origin = Origin::new();
    let mut bytes = pattern(8 << 20, 1);
    origin.direct.put("disk", &bytes);
    // Data of a recently changed file are fetched again, so let it age.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let proxy = origin.proxy();
    let file = proxy.writer("disk");
    assert!(proxy.read_all(file, 0, usize::MAX) == bytes);
    let before = origin.asked("read");
    for round in 0..5 {
        let at = round * 1_500_000;
        bytes[at..at + 5000].fill(round as u8);
        proxy.write(file, at as u64, &bytes[at..at + 5000]).expect("written");
        proxy.write_back.flush().expect("sent");
        assert!(origin.direct.contents("disk") == bytes, "round {round}: it is there");
        assert!(proxy.read_all(file, 0, usize::MAX) == bytes, "round {round}");
    }
    let asked = origin.asked("read") - before;
    assert!(asked <= 5 * 4, "{asked} reads: only what was written is fetched anew");
    proxy.release(file);
}
