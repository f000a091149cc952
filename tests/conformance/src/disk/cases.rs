//! Cases against disks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tombolo_core::block::{Allocation, SizeWatch, Zeroing};
use tombolo_core::{Error, Stability};
use tombolo_mem::{Buffer, Sink, Source};

use super::bench::{is_zero, pattern, range, refused};
use super::{Bench, SIZE_BYTES, Skip, Verdict};

super::table! {
    it_is_as_long_as_it_was_made_and_reads_as_zeroes,
    both_ends_can_be_written_and_read,
    a_write_below_the_physical_block_leaves_its_neighbours,
    data_in_many_pieces_are_in_their_order,
    what_is_beyond_the_end_is_refused_and_changes_nothing,
    nothing_can_be_read_and_written_anywhere,
    every_stability_is_taken_and_flushes_succeed,
    a_discard_leaves_its_neighbours,
    zeroes_are_written_where_they_were_asked_for_and_nowhere_else,
    zeroes_that_must_be_fast_are_written_or_refused_before_anything_is_changed,
    extents_agree_with_the_data,
    extents_are_no_more_than_asked_for_and_go_on_where_they_ended,
    writes_of_different_sectors_at_the_same_time_are_all_there,
    a_new_size_is_told_and_what_is_new_reads_as_zeroes,
    #read_only a_read_only_disk_refuses_every_change,
}

const MIB: u64 = 1 << 20;

fn it_is_as_long_as_it_was_made_and_reads_as_zeroes(bench: &Bench) {
    let geometry = bench.disk.geometry();
    assert_eq!(geometry.size_bytes, SIZE_BYTES);
    assert!(geometry.block_bytes.is_power_of_two() && geometry.block_bytes >= 512, "{geometry:?}");
    assert!(geometry.physical_block_bytes >= geometry.block_bytes, "{geometry:?}");
    assert!(is_zero(&bench.read(0, SIZE_BYTES).expect("read")));
}

fn both_ends_can_be_written_and_read(bench: &Bench) {
    for (offset, len) in
        [(0, 512), (0, 4096), (SIZE_BYTES - 512, 512), (SIZE_BYTES - 65536, 65536), (0, SIZE_BYTES)]
    {
        let bytes = pattern(offset + len, len);
        bench.write(offset, &bytes).expect("written");
        assert!(bench.read(offset, len).expect("read") == bytes, "{len} bytes at {offset}");
    }
    assert_eq!(bench.disk.geometry().size_bytes, SIZE_BYTES);
}

fn a_write_below_the_physical_block_leaves_its_neighbours(bench: &Bench) {
    let mut model = pattern(1, 4 * 4096);
    bench.write(0, &model).expect("written");
    for (salt, (offset, len)) in [(512, 512), (3584, 1024), (4096 + 1536, 4096)].into_iter().enumerate() {
        let bytes = pattern(100 + salt as u64, len);
        bench.write(offset, &bytes).expect("written");
        model[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
        assert!(bench.read(0, 4 * 4096).expect("read") == model, "{len} bytes at {offset}");
    }
}

fn data_in_many_pieces_are_in_their_order(bench: &Bench) {
    // Pieces of odd lengths in reverse order of memory; the last count exceeds one system call (IOV_MAX).
    for pieces in [2_usize, 3, 17, 1500] {
        let lens = (0..pieces).map(|piece| 1 + piece * 37 % 300);
        let total = lens.clone().sum::<usize>().next_multiple_of(512);
        let bytes = pattern(pieces as u64, total as u64);
        let (memory, back) = (Buffer::new(total), Buffer::new(total));
        let (mut from, mut into, mut read) = (Source::new(), Sink::new(), Source::new());
        for len in lens.chain([total]) {
            let end = total - from.len();
            let piece = end.saturating_sub(len)..end;
            memory.sink(piece.clone()).write_at(0, &bytes[from.len()..]);
            from.append(memory.source(piece.clone()));
            into.append(back.sink(piece.clone()));
            read.append(back.source(piece));
        }
        bench.answered(bench.disk.write(&bench.cx, 512, Stability::Unstable, from)).expect("written");
        assert!(bench.read(512, total as u64).expect("read") == bytes, "written in {pieces} pieces");
        bench.answered(bench.disk.read(&bench.cx, 512, into)).expect("read");
        assert!(read.to_vec(total) == bytes, "read in {pieces} pieces");
    }
}

fn what_is_beyond_the_end_is_refused_and_changes_nothing(bench: &Bench) {
    let before = pattern(7, 8192);
    bench.write(SIZE_BYTES - 8192, &before).expect("written");
    let last = u64::MAX - 511;
    for (offset, len) in
        [(SIZE_BYTES - 512, 1024), (SIZE_BYTES - 4096, 8192), (SIZE_BYTES, 512), (1 << 62, 512), (last, 512)]
    {
        let what = format!("{len} bytes at {offset}");
        refused(&bench.read(offset, len), &what);
        for stability in [Stability::Unstable, Stability::DataSync] {
            refused(&bench.write_stable(offset, &pattern(9, len), stability), &what);
        }
        refused(&bench.discard(range(offset, len)), &what);
        for may_unmap in [false, true] {
            refused(
                &bench.write_zeroes(range(offset, len), Zeroing { may_unmap, ..Zeroing::default() }),
                &what,
            );
        }
        refused(&bench.extents(range(offset, len), 10), &what);
    }
    refused(&bench.discard(range(0, u64::MAX)), "a length that no disk has");
    refused(&bench.write_zeroes(range(512, u64::MAX), Zeroing::default()), "an end that no number says");
    assert_eq!(bench.disk.geometry().size_bytes, SIZE_BYTES);
    assert!(bench.read(SIZE_BYTES - 8192, 8192).expect("read") == before, "something was changed");
}

fn nothing_can_be_read_and_written_anywhere(bench: &Bench) {
    let before = pattern(3, SIZE_BYTES);
    bench.write(0, &before).expect("written");
    for offset in [0, 512, SIZE_BYTES] {
        bench.read(offset, 0).expect("read");
        bench.write_stable(offset, &[], Stability::DataSync).expect("written");
        bench.discard(range(offset, 0)).expect("discarded");
        bench.write_zeroes(range(offset, 0), Zeroing::default()).expect("zeroed");
        assert_eq!(bench.extents(range(offset, 0), 10).expect("extents"), []);
    }
    assert!(bench.read(0, SIZE_BYTES).expect("read") == before, "something was changed");
}

fn every_stability_is_taken_and_flushes_succeed(bench: &Bench) {
    bench.flush().expect("flushed, though there is nothing");
    for (salt, stability) in
        [Stability::Unstable, Stability::DataSync, Stability::FileSync].into_iter().enumerate()
    {
        let bytes = pattern(salt as u64, 12288);
        bench.write_stable(512, &bytes, stability).expect("written");
        assert!(bench.read(512, 12288).expect("read") == bytes, "{stability:?}");
        bench.flush().expect("flushed");
        let zeroes = range(4096, 512);
        bench.write_zeroes(zeroes, Zeroing { stability, ..Zeroing::default() }).expect("zeroed");
        assert_eq!(bench.read(4096, 512).expect("read"), [0; 512], "{stability:?}");
        bench.flush().expect("flushed");
    }
}

/// Ranges at and next to boundaries of any unit.
const RANGES: [(u64, u64); 6] = [
    (MIB, MIB),
    (4096, 4096),
    (512, 512),
    (3584, 1024),
    (4096 + 512, 65536),
    (SIZE_BYTES - 4096 - 512, 4096 + 512),
];

/// Asserts that only the range has changed.
fn same_outside(bench: &Bench, before: &[u8], offset: u64, len: u64) {
    let now = bench.read(0, SIZE_BYTES).expect("read");
    let (start, end) = (offset as usize, (offset + len) as usize);
    assert!(now[..start] == before[..start], "changed before {len} bytes at {offset}");
    assert!(now[end..] == before[end..], "changed behind {len} bytes at {offset}");
}

fn a_discard_leaves_its_neighbours(bench: &Bench) {
    for (salt, (offset, len)) in RANGES.into_iter().enumerate() {
        let before = pattern(salt as u64, SIZE_BYTES);
        bench.write(0, &before).expect("written");
        bench.discard(range(offset, len)).expect("discarded");
        same_outside(bench, &before, offset, len);
        let bytes = pattern(50, len);
        bench.write(offset, &bytes).expect("written");
        assert!(bench.read(offset, len).expect("read") == bytes, "{len} bytes at {offset}, discarded before");
    }
}

fn zeroes_are_written_where_they_were_asked_for_and_nowhere_else(bench: &Bench) {
    for may_unmap in [false, true] {
        for (salt, (offset, len)) in RANGES.into_iter().enumerate() {
            let before = pattern(salt as u64, SIZE_BYTES);
            bench.write(0, &before).expect("written");
            let how = Zeroing { may_unmap, ..Zeroing::default() };
            bench.write_zeroes(range(offset, len), how).expect("zeroed");
            let zeroed = bench.read(offset, len).expect("read");
            assert!(is_zero(&zeroed), "{how:?}: {len} bytes at {offset}");
            same_outside(bench, &before, offset, len);
        }
        bench
            .write_zeroes(range(0, SIZE_BYTES), Zeroing { may_unmap, ..Zeroing::default() })
            .expect("zeroed");
        assert!(is_zero(&bench.read(0, SIZE_BYTES).expect("read")));
    }
}

fn zeroes_that_must_be_fast_are_written_or_refused_before_anything_is_changed(bench: &Bench) -> Verdict {
    let before = pattern(5, SIZE_BYTES);
    bench.write(0, &before).expect("written");
    for may_unmap in [false, true] {
        let how = Zeroing { may_unmap, only_fast: true, ..Zeroing::default() };
        match bench.write_zeroes(range(MIB, MIB), how) {
            Ok(()) => assert!(is_zero(&bench.read(MIB, MIB).expect("read")), "{how:?}"),
            Err(Error::NotSupported) => {
                assert!(bench.read(MIB, MIB).expect("read") == before[MIB as usize..2 * MIB as usize])
            }
            other => panic!("{how:?}: {other:?}"),
        }
        same_outside(bench, &before, MIB, MIB);
        bench.write(0, &before).expect("written");
    }
    Ok(())
}

fn extents_agree_with_the_data(bench: &Bench) {
    let whole = range(0, SIZE_BYTES);
    bench.check_extents(whole);
    for offset in [MIB, 3 * MIB, SIZE_BYTES - 512] {
        bench.write(offset, &pattern(1, 512)).expect("written");
        bench.check_extents(whole);
    }
    bench.check_extents(range(512, SIZE_BYTES - 1024));
    bench.check_extents(range(MIB + 512, 1024));
    bench.write(0, &pattern(2, SIZE_BYTES)).expect("written");
    let data = bench.check_extents(whole);
    assert!(data.iter().all(|extent| extent.allocation == Allocation::Data), "{data:?}");
    bench.write_zeroes(range(MIB, MIB), Zeroing { may_unmap: true, ..Zeroing::default() }).expect("zeroed");
    bench.write_zeroes(range(2 * MIB, MIB), Zeroing::default()).expect("zeroed");
    bench.check_extents(whole);
}

fn extents_are_no_more_than_asked_for_and_go_on_where_they_ended(bench: &Bench) -> Verdict {
    bench
        .write_zeroes(range(0, SIZE_BYTES), Zeroing { may_unmap: true, ..Zeroing::default() })
        .expect("zeroed");
    for offset in [64 << 10, MIB, 2 * MIB, 3 * MIB] {
        bench.write(offset, &pattern(1, 64 << 10)).expect("written");
    }
    let all = bench.check_extents(range(0, SIZE_BYTES));
    if all.len() == 1 {
        return Err(Skip("it does not know its holes".into()));
    }
    for count_max in [1, 2, 3] {
        let (mut at, mut kinds) = (0, Vec::new());
        while at < SIZE_BYTES {
            let some = bench.extents(range(at, SIZE_BYTES - at), count_max).expect("extents");
            assert!(!some.is_empty() && some.len() <= count_max, "asked for {count_max}: {some:?}");
            for extent in some {
                at += extent.len_bytes;
                kinds.push((at, extent.allocation));
            }
        }
        // A split extent may be reported as several.
        let kinds: Vec<_> = kinds
            .iter()
            .enumerate()
            .filter(|(i, it)| kinds.get(i + 1).is_none_or(|next| next.1 != it.1))
            .map(|(_, it)| *it)
            .collect();
        let mut end = 0;
        let expected: Vec<_> = all
            .iter()
            .map(|extent| {
                end += extent.len_bytes;
                (end, extent.allocation)
            })
            .collect();
        assert_eq!(kinds, expected, "{count_max} at a time");
    }
    Ok(())
}

fn writes_of_different_sectors_at_the_same_time_are_all_there(bench: &Bench) {
    const THREADS: u64 = 4;
    const SECTORS: u64 = 512;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for sector in (thread..SECTORS).step_by(THREADS as usize) {
                    bench.write(sector * 512, &pattern(sector, 512)).expect("written");
                }
            });
        }
    });
    let all = bench.read(0, SECTORS * 512).expect("read");
    for (sector, bytes) in (0..).zip(all.chunks(512)) {
        assert!(bytes == pattern(sector, 512), "sector {sector}");
    }
}

fn a_new_size_is_told_and_what_is_new_reads_as_zeroes(bench: &Bench) -> Verdict {
    let Some(resize) = bench.disk.resize() else { return Err(Skip("it cannot be resized".into())) };
    let told = Arc::new(AtomicU64::new(0));
    let seen = told.clone();
    let watch: Arc<SizeWatch> = Arc::new(move |size_bytes| seen.store(size_bytes, Ordering::SeqCst));
    resize.watch(&watch);
    let before = pattern(1, SIZE_BYTES);
    bench.write(0, &before).expect("written");
    // Data cut off must not reappear, even if the cut is inside a page.
    for (from, to) in [(SIZE_BYTES, 2 * MIB + 512), (2 * MIB + 512, SIZE_BYTES), (SIZE_BYTES, 2 * SIZE_BYTES)]
    {
        bench.set_size(to).expect("resized");
        assert_eq!((bench.disk.geometry().size_bytes, told.load(Ordering::SeqCst)), (to, to));
        refused(&bench.write(to, &[1; 512]), "beyond the new end");
        if to > from {
            assert!(is_zero(&bench.read(from, to - from).expect("read")), "{from} to {to}");
        }
        let kept = 2 * MIB + 512;
        assert!(bench.read(0, kept).expect("read") == before[..kept as usize], "{from} to {to}");
        bench.check_extents(range(0, to));
    }
    refused(&bench.set_size(SIZE_BYTES + 1), "a part of a block");
    refused(&bench.set_size(0), "an empty disk");
    bench.write(2 * SIZE_BYTES - 512, &pattern(4, 512)).expect("written at the new end");
    drop(watch);
    bench.set_size(SIZE_BYTES).expect("resized");
    assert_eq!(told.load(Ordering::SeqCst), 2 * SIZE_BYTES, "what is gone is told nothing");
    Ok(())
}

fn a_read_only_disk_refuses_every_change(bench: &Bench) -> Verdict {
    assert!(bench.disk.profile().read_only);
    let zeroes = bench.write_zeroes(range(0, 4096), Zeroing::default());
    let unmapped = bench.write_zeroes(range(0, 4096), Zeroing { may_unmap: true, ..Zeroing::default() });
    for result in [bench.write(0, &[1; 512]), bench.discard(range(0, 4096)), zeroes, unmapped] {
        assert!(matches!(result, Err(Error::ReadOnly)), "{result:?}");
    }
    if bench.disk.resize().is_some() {
        assert!(
            matches!(bench.set_size(2 * SIZE_BYTES), Err(Error::ReadOnly)),
            "its size is one of its changes"
        );
    }
    bench.flush().expect("flushed");
    assert!(is_zero(&bench.read(0, SIZE_BYTES).expect("read")));
    bench.check_extents(range(0, SIZE_BYTES));
    Ok(())
}
