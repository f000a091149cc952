//! Sinks and sources against a model: a plain `Vec<u8>`.

use proptest::prelude::*;
use tombolo_mem::{Region, Sink, Source};

/// Length of each of three regions; the model is the position of each of a vector's bytes in them.
const REGION_LEN: usize = 96;

#[derive(Debug, Clone)]
enum Step {
    Push { region: usize, offset: usize, len: usize },
    Truncate(usize),
    Advance(usize),
    SplitKeepHead(usize),
    SplitKeepTail(usize),
    SplitAndSwap(usize),
    Write { at: usize, bytes: Vec<u8> },
    Zero { at: usize, len: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..REGION_LEN * 3;
    prop_oneof![
        4 => (0..3usize, 0..REGION_LEN + 8, 0..REGION_LEN)
            .prop_map(|(region, offset, len)| Step::Push { region, offset, len }),
        1 => at().prop_map(Step::Truncate),
        1 => at().prop_map(Step::Advance),
        1 => at().prop_map(Step::SplitKeepHead),
        1 => at().prop_map(Step::SplitKeepTail),
        2 => at().prop_map(Step::SplitAndSwap),
        3 => (at(), prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(at, bytes)| Step::Write { at, bytes }),
        1 => (at(), 0..REGION_LEN * 2).prop_map(|(at, len)| Step::Zero { at, len }),
    ]
}

/// The memory as a plain array, and a vector as a list of positions.
struct Model {
    memory: Vec<Vec<u8>>,
    places: Vec<(usize, usize)>,
}

impl Model {
    fn write(&mut self, at: usize, bytes: &[u8]) -> usize {
        let places = self.places.get(at..).unwrap_or_default();
        for ((region, offset), byte) in places.iter().zip(bytes) {
            self.memory[*region][*offset] = *byte;
        }
        places.len().min(bytes.len())
    }

    fn read(&self) -> Vec<u8> {
        self.places.iter().map(|(region, offset)| self.memory[*region][*offset]).collect()
    }
}

fn apply(step: Step, regions: &[Region], sink: &mut Sink, source: &mut Source, model: &mut Model) {
    match step {
        Step::Push { region, offset, len } => {
            let fits = offset + len <= REGION_LEN;
            assert_eq!(sink.push(&regions[region], offset, len).is_ok(), fits);
            assert_eq!(source.push(&regions[region], offset, len).is_ok(), fits);
            if fits {
                model.places.extend((offset..offset + len).map(|at| (region, at)));
            }
        }
        Step::Truncate(n) => {
            sink.truncate(n);
            source.truncate(n);
            model.places.truncate(n);
        }
        Step::Advance(n) => {
            sink.advance(n);
            source.advance(n);
            model.places.drain(..n.min(model.places.len()));
        }
        Step::SplitKeepHead(at) => {
            let cut = at.min(model.places.len());
            assert_eq!(sink.split_off(at).len(), model.places.len() - cut);
            source.split_off(at);
            model.places.truncate(at);
        }
        Step::SplitKeepTail(at) => {
            *sink = sink.split_off(at);
            *source = source.split_off(at);
            model.places.drain(..at.min(model.places.len()));
        }
        Step::SplitAndSwap(at) => {
            let (mut tail, mut source_tail) = (sink.split_off(at), source.split_off(at));
            tail.append(std::mem::take(sink));
            source_tail.append(std::mem::take(source));
            (*sink, *source) = (tail, source_tail);
            let cut = at.min(model.places.len());
            model.places.rotate_left(cut);
        }
        Step::Write { at, bytes } => assert_eq!(sink.write_at(at, &bytes), model.write(at, &bytes)),
        Step::Zero { at, len } => assert_eq!(sink.zero(at, len), model.write(at, &vec![0; len])),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn operation_sequences_match_a_plain_array(steps in prop::collection::vec(step(), 1..40)) {
        let regions: Vec<Region> = (0..3).map(|_| Region::heap(REGION_LEN)).collect();
        let mut model = Model { memory: vec![vec![0; REGION_LEN]; 3], places: Vec::new() };
        let (mut sink, mut source) = (Sink::new(), Source::new());
        for step in steps {
            apply(step, &regions, &mut sink, &mut source, &mut model);
            prop_assert_eq!(sink.len(), model.places.len());
            prop_assert_eq!(source.len(), model.places.len());
            prop_assert_eq!(sink.segments().map(|segment| segment.len).sum::<usize>(), sink.len());
            prop_assert!(sink.segments().all(|segment| segment.len > 0));
            prop_assert_eq!(source.to_vec(usize::MAX), model.read());
        }
        // Bytes outside of all vectors must be unchanged as well.
        for (region, expected) in regions.iter().zip(&model.memory) {
            prop_assert_eq!(&Source::from(region).to_vec(REGION_LEN), expected);
        }
    }

    #[test]
    fn copying_between_vectors_moves_the_common_prefix(
        cuts in prop::collection::vec(1..200usize, 1..12),
        pieces in prop::collection::vec(1..200usize, 1..12),
    ) {
        let (from_len, to_len) = (cuts.iter().sum::<usize>(), pieces.iter().sum::<usize>());
        let bytes: Vec<u8> = (0..from_len).map(|i| (i % 251) as u8 + 1).collect();
        let region = Region::from(bytes.clone());
        let mut source = Source::new();
        let mut at = 0;
        for cut in cuts {
            source.push(&region, at, cut).unwrap();
            at += cut;
        }
        // A gap behind each piece prevents segments from merging.
        let target = Region::heap(to_len + pieces.len());
        let mut sink = Sink::new();
        let mut at = 0;
        for piece in &pieces {
            sink.push(&target, at, *piece).unwrap();
            at += piece + 1;
        }
        let n = source.copy_to_sink(&sink);
        prop_assert_eq!(n, from_len.min(to_len));
        let all = Source::from(&target).to_vec(usize::MAX);
        let mut expected = bytes[..n].to_vec();
        expected.resize(to_len, 0);
        let mut expected = expected.into_iter();
        let mut model = Vec::new();
        for piece in &pieces {
            model.extend(expected.by_ref().take(*piece));
            model.push(0);
        }
        prop_assert_eq!(all, model);
    }
}

#[test]
fn adjacent_spans_merge_into_one_segment() {
    let region = Region::heap(8192);
    let mut sink = Sink::new();
    sink.push(&region, 0, 4096).unwrap();
    sink.push(&region, 4096, 4096).unwrap();
    assert_eq!(sink.segments().len(), 1);
    sink.push(&region, 0, 1).unwrap();
    assert_eq!(sink.segments().len(), 2);
    // The same for appended vectors.
    let mut source = Source::new();
    for offset in 0..100 {
        let mut byte = Source::new();
        byte.push(&region, offset, 1).unwrap();
        source.append(byte);
    }
    assert_eq!((source.segments().len(), source.len()), (1, 100));
}

#[test]
fn within_returns_offsets_in_a_single_region() {
    let (one, other) = (Region::heap(REGION_LEN), Region::heap(REGION_LEN));
    let places =
        |source: &Source| source.within().map(|(region, parts)| (region.clone(), parts.collect::<Vec<_>>()));
    let mut source = Source::new();
    assert!(places(&source).is_none(), "nothing lies nowhere");
    source.push(&one, 10, 5).unwrap();
    source.push(&one, 40, 20).unwrap();
    source.advance(2);
    source.truncate(13);
    let (region, parts) = places(&source).unwrap();
    assert!(region.same(&one));
    assert_eq!(parts, [(12, 3), (40, 10)]);
    source.push(&other, 0, 1).unwrap();
    assert!(places(&source).is_none(), "two regions");
}

#[test]
fn notes_are_visible_through_every_source() {
    let region = Region::heap(REGION_LEN);
    assert!(region.leave_note(7_u32));
    assert!(!region.leave_note(8_u32), "the first stays");
    let source = Source::from(&region);
    let (again, _) = source.within().unwrap();
    assert_eq!((again.note::<u32>(), again.note::<u64>()), (Some(&7), None));
}

#[test]
fn offset_and_length_that_wrap_around_are_refused() {
    let region = Region::heap(64);
    let mut sink = Sink::new();
    for (offset, len) in [(usize::MAX, 1), (1, usize::MAX), (usize::MAX, usize::MAX), (65, 0), (0, 65)] {
        let error = sink.push(&region, offset, len).unwrap_err();
        assert_eq!((error.offset, error.len, error.region_len), (offset, len, 64));
    }
    assert!(sink.is_empty());
    sink.push(&region, 64, 0).unwrap();
    assert_eq!(sink.segments().len(), 0);
}

#[test]
fn memory_lives_as_long_as_it_is_referenced() {
    let mut sink = Sink::from(&Region::heap(100));
    let tail = sink.split_off(50);
    drop(sink);
    let thread = std::thread::spawn(move || (tail.write_at(0, b"late"), tail));
    let (written, tail) = thread.join().unwrap();
    assert_eq!((written, tail.len()), (4, 50));
}
