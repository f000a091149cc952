//! Arbitrary bytes as damage to a qcow2 image, and then as requests to it: every request is answered. For an
//! undamaged image each answer, and the content found by another opening, is that of a plain array.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use tombolo_back_image_file::{Checked, Qcow2Image};
use tombolo_core::block::{BlockDevice, OpenOptions, Range, Zeroing};
use tombolo_core::{Ctx, SessionId, Stability};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_mem::{Buffer, Source};

const CLUSTER: usize = 512;
const BLOCK: u64 = 512;
const DISK_BYTES: usize = 64 << 10;
const REQUESTS_MAX: usize = 24;
const WRITTEN: u8 = 7;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&damages, rest)) = bytes.split_first() else { return };
    let (damages, requests) = rest.split_at((usize::from(damages % 16) * 3).min(rest.len()));
    let sound = image();
    let mut image = sound.clone();
    for damage in damages.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([damage[0], damage[1]])) % image.len();
        image[at] ^= damage[2];
    }
    let is_sound = image == sound;
    let bed = Bed::new(&image);
    let checked = Qcow2Image::check(&bed.path);
    if is_sound {
        let Ok(Checked { damages_count: 0, leaked_bytes: Some(0), .. }) = checked else {
            panic!("{checked:?}")
        };
    }
    let Some(disk) = bed.open(false) else {
        assert!(!is_sound, "a sound image is not opened");
        return;
    };
    let mut model = is_sound.then(Model::new);
    for (step, request) in requests.as_chunks::<3>().0.iter().take(REQUESTS_MAX).enumerate() {
        ask(&*disk, *request, 100 + step as u8, model.as_mut());
    }
    drop(disk);
    if let Some(model) = model {
        let again = bed.open(true).expect("it was sound");
        assert_eq!(again.geometry().size_bytes as usize, model.0.len());
        model.compare(0, &read(&*again, 0, model.0.len()).expect("read"));
    }
}

/// Returns the smallest image with one of each table, a data cluster and a zero cluster (qcow2 specification,
/// version 3).
fn image() -> Vec<u8> {
    const REFCOUNT_TABLE: usize = 1;
    const REFCOUNTS: usize = 2;
    const L1: usize = 3;
    const L2: usize = 4;
    const DATA: usize = 5;
    const COPIED: u64 = 1 << 63;
    let mut image = vec![0; (DATA + 1) * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..][..bytes.len()].copy_from_slice(bytes);
    let place = |cluster: usize| (cluster * CLUSTER) as u64;
    put(0, b"QFI\xfb");
    for (at, value) in [(4, 3), (20, 9), (36, 2), (56, 1), (96, 4), (100, 104_u32)] {
        put(at, &value.to_be_bytes());
    }
    let lists = [(24, DISK_BYTES as u64), (40, place(L1)), (48, place(REFCOUNT_TABLE))];
    let tables = [
        (REFCOUNT_TABLE * CLUSTER, place(REFCOUNTS)),
        (L1 * CLUSTER, place(L2) | COPIED),
        (L2 * CLUSTER, place(DATA) | COPIED),
        (L2 * CLUSTER + 8, 1),
    ];
    for (at, value) in lists.into_iter().chain(tables) {
        put(at, &value.to_be_bytes());
    }
    (0..=DATA).for_each(|cluster| put(REFCOUNTS * CLUSTER + 2 * cluster, &1_u16.to_be_bytes()));
    put(DATA * CLUSTER, &[WRITTEN; CLUSTER]);
    image
}

struct Bed {
    path: PathBuf,
    pool: ThreadPool,
}

impl Bed {
    fn new(image: &[u8]) -> Self {
        let thread = std::thread::current().id();
        let path = PathBuf::from(format!("/dev/shm/tombolo-fuzz-{}-{thread:?}.qcow2", std::process::id()));
        fs::write(&path, image).expect("write");
        // This thread does the pool's work at once.
        let pool = ThreadPool::new("disk", ThreadPoolLimits { threads: 0, ..ThreadPoolLimits::default() });
        Self { path, pool }
    }

    fn open(&self, read_only: bool) -> Option<Arc<Qcow2Image>> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        Qcow2Image::open(&self.path, &options, None, self.pool.lane()).ok()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Expected contents of the disk, unspecified where discarded.
struct Model(Vec<Option<u8>>);

impl Model {
    fn new() -> Self {
        let mut bytes = vec![Some(0); DISK_BYTES];
        bytes[..CLUSTER].fill(Some(WRITTEN));
        Self(bytes)
    }

    fn set(&mut self, range: Range, byte: Option<u8>) {
        self.0[range.offset as usize..range.end() as usize].fill(byte);
    }

    fn compare(&self, offset: u64, found: &[u8]) {
        let expected = &self.0[offset as usize..][..found.len()];
        let is_same =
            expected.iter().zip(found).all(|(expected, found)| expected.is_none_or(|it| it == *found));
        assert!(is_same, "from {offset} on something else is read than was written");
    }
}

fn ask(disk: &dyn BlockDevice, [kind, at, count]: [u8; 3], byte: u8, model: Option<&mut Model>) {
    let cx = Ctx::root(SessionId(1));
    let blocks = disk.geometry().size_bytes / BLOCK;
    let first = u128::from(blocks) * u128::from(at) / 256;
    let offset = first as u64 * BLOCK;
    let len_bytes = (u64::from(count % 16) + 1).min(blocks - first as u64) * BLOCK;
    let range = Range { offset, len_bytes };
    let how = Zeroing { may_unmap: kind & 8 != 0, ..Zeroing::default() };
    let size_bytes = (u64::from(count) + 1) * BLOCK;
    let outcome = match kind % 7 {
        0 => read(disk, offset, len_bytes as usize).map(|found| {
            if let Some(model) = &model {
                model.compare(offset, &found);
            }
        }),
        1 => {
            let bytes = Source::from(vec![byte; len_bytes as usize]);
            disk.write(&cx, offset, Stability::Unstable, bytes).wait()
        }
        2 => disk.write_zeroes(&cx, range, how).wait(),
        3 => disk.discard(&cx, range).wait(),
        4 => disk.flush(&cx).wait(),
        5 => disk.extents(&cx, range, 8).wait().map(|extents| assert!(!extents.as_slice().is_empty())),
        _ => disk.resize().expect("it can").set_size(&cx, size_bytes).wait(),
    };
    let Some(model) = model else { return };
    outcome.expect("the image is sound");
    match kind % 7 {
        1 => model.set(range, Some(byte)),
        2 => model.set(range, Some(0)),
        3 => model.set(range, None),
        6 => model.0.resize(size_bytes as usize, Some(0)),
        _ => {}
    }
}

fn read(disk: &dyn BlockDevice, offset: u64, len: usize) -> tombolo_core::Result<Vec<u8>> {
    let mut buffer = Buffer::new(len);
    disk.read(&Ctx::root(SessionId(1)), offset, buffer.sink(0..len)).wait()?;
    Ok(buffer.as_slice().expect("ours alone again").to_vec())
}
