//! Spans against a naive model of each byte's owner.

use std::collections::BTreeMap;
use std::thread;

use proptest::prelude::*;
use tombolo_shm::area::{Area, SPAN_ALIGN, Span};

const PAGE: u64 = 4096;
const START: u64 = 3 * PAGE;
const BYTES: u64 = 150 * PAGE;

/// The allocated ranges, as starts and ends.
#[derive(Default)]
struct Account(BTreeMap<u64, u64>);

impl Account {
    /// Adds a range. Returns `true` if all of it was free.
    fn take(&mut self, start: u64, end: u64) -> bool {
        let before = self.0.range(..end).next_back();
        let free = before.is_none_or(|(_, &taken_to)| taken_to <= start);
        self.0.insert(start, end);
        free
    }

    fn give_back(&mut self, start: u64) {
        self.0.remove(&start);
    }

    /// Returns the longest run of completely free pages.
    fn longest_free_pages(&self) -> u64 {
        let (mut longest, mut from) = (0, START);
        for (&start, &end) in &self.0 {
            longest = longest.max((start / PAGE * PAGE).saturating_sub(from));
            from = end.next_multiple_of(PAGE);
        }
        longest.max((START + BYTES).saturating_sub(from)) / PAGE
    }
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![0..200u64, 0..2 * PAGE, (1..5u64).prop_map(|pages| pages * PAGE), 0..40 * PAGE]
}

proptest! {
    #[test]
    fn spans_never_overlap_and_free_space_is_found(
        steps in proptest::collection::vec((any::<bool>(), lengths(), any::<prop::sample::Index>()), 1..400),
    ) {
        let area = Area::new(START..START + BYTES);
        let mut account = Account::default();
        let mut held: Vec<Span> = Vec::new();
        for (take, len, which) in steps {
            if !take && !held.is_empty() {
                let span = held.swap_remove(which.index(held.len()));
                account.give_back(span.offset());
                continue;
            }
            let Some(span) = area.take(len) else {
                prop_assert!(len.div_ceil(PAGE) > account.longest_free_pages(), "no room for {}", len);
                continue;
            };
            prop_assert_eq!(span.len(), len);
            prop_assert_eq!(span.offset() % if len > PAGE / 2 { PAGE } else { SPAN_ALIGN }, 0);
            prop_assert!(span.offset() >= START && span.offset() + len <= START + BYTES);
            // Spans share no cache line.
            let end = (span.offset() + len.max(1)).next_multiple_of(SPAN_ALIGN);
            prop_assert!(account.take(span.offset(), end), "{:?} overlaps", span);
            held.push(span);
        }
        let taken: u64 = account.0.iter().map(|(start, end)| end - start).sum();
        prop_assert!(area.free_bytes() <= BYTES - taken);
        drop(held);
        prop_assert_eq!(area.free_bytes(), BYTES);
        prop_assert!(area.take(BYTES).is_some(), "in one piece again");
    }
}

#[test]
fn only_whole_pages_inside_the_range_are_given_out() {
    let area = Area::new(100..3 * PAGE + 100);
    assert_eq!(area.capacity_bytes(), 2 * PAGE);
    let all = area.take(2 * PAGE).expect("both pages");
    assert_eq!((all.offset(), area.free_bytes()), (PAGE, 0));
    assert!(area.take(1).is_none() && area.take(0).is_none());
    drop(all);
    assert!(area.take(2 * PAGE + 1).is_none() && area.take(u64::MAX).is_none());
    #[expect(clippy::reversed_empty_ranges)]
    for range in [0..0, 5000..100, u64::MAX..u64::MAX, 0..PAGE - 1] {
        let nothing = Area::new(range);
        assert_eq!(nothing.capacity_bytes(), 0);
        assert!(nothing.take(1).is_none());
    }
}

#[test]
fn small_spans_share_pages() {
    let area = Area::new(0..2 * PAGE);
    let small: Vec<Span> = (0..64).map(|_| area.take(100).expect("room")).collect();
    assert!(area.take(1).is_none(), "two lines each");
    drop(small);
    assert_eq!(area.free_bytes(), 2 * PAGE);
}

#[test]
fn threads_never_have_the_same_bytes() {
    const THREADS: u64 = 4;
    let area = Area::new(0..8 * PAGE);
    let owners: Vec<_> = (0..8 * PAGE / SPAN_ALIGN).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for me in 1..=THREADS {
            let (area, owners) = (&area, &owners);
            scope.spawn(move || {
                for turn in 0..2000 {
                    let Some(span) = area.take((turn * 37 * me) % 6000 + 1) else { continue };
                    let grains =
                        span.offset() / SPAN_ALIGN..(span.offset() + span.len()).div_ceil(SPAN_ALIGN);
                    let own = &owners[grains.start as usize..grains.end as usize];
                    for owner in own {
                        assert_eq!(owner.swap(me, std::sync::atomic::Ordering::AcqRel), 0);
                    }
                    for owner in own {
                        assert_eq!(owner.swap(0, std::sync::atomic::Ordering::AcqRel), me);
                    }
                }
            });
        }
    });
    assert_eq!(area.free_bytes(), 8 * PAGE);
}
