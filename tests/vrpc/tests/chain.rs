//! A chain of three domains: a program, a middle server, and the last server behind it. The program's data
//! pass the middle by reference.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::{LinkLossPolicy, Socket, VrpcExport, VrpcFileSystem};
use tombolo_core::fs::{Client, Export, File, FileSystem, Write};
use tombolo_core::{Error, Result};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::connect::ConnectOptions;
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::server::Server;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Features, Incarnation};
use tombolo_test_support::{Session, until};
use tombolo_vrpc_tests::site::{client, root};

fn serve(path: &Path, export: Arc<dyn Export>) -> LinkListener {
    let service = VrpcServer::new().with_export("src", export, Options::default());
    LinkListener::start(path, Arc::new(Server::new(Arc::new(service))), ListenOptions::default())
        .expect("a listener")
}

fn dial(path: &Path, offered: Features) -> VrpcExport {
    let mut options = ConnectOptions::new("src", "test", Incarnation([1; 16])).expect("a layout");
    options.offered = offered;
    let socket = Socket::new(path, options, Mode::Adaptive).expect("a watcher");
    VrpcExport::new(socket).with_link_loss_policy(LinkLossPolicy::None)
}

/// Export of the middle server, with its sessions for inspection.
struct Middle {
    export: VrpcExport,
    sessions: Mutex<Vec<Arc<VrpcFileSystem>>>,
}

impl Export for Middle {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let session = self.export.attach_session(client)?;
        self.sessions.lock().expect("unpoisoned").push(session.clone());
        Ok(session)
    }
}

/// One test looks at the memory of the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Chain {
    _alone: MutexGuard<'static, ()>,
    program: Arc<VrpcFileSystem>,
    middle: Arc<Middle>,
    _middle_listener: LinkListener,
    last_listener: Option<LinkListener>,
    _dir: tempfile::TempDir,
}

const BOTH: fn() -> Features = || Features::FORWARDED_REGIONS | Features::REGION_FORWARDING;

impl Chain {
    /// Builds a chain in which program and middle offer these features and the last server serves `last`.
    fn new(program: Features, middle: Features, last: Arc<dyn Export>) -> Chain {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| -> PathBuf { dir.path().join(name) };
        let last_listener = serve(&at("last"), last);
        let middle = Middle { export: dial(&at("last"), middle), sessions: Mutex::default() };
        let middle = Arc::new(middle);
        let middle_listener = serve(&at("middle"), middle.clone());
        let program = dial(&at("middle"), program).attach_session(&client()).expect("a session");
        let last_listener = Some(last_listener);
        Chain { _alone: alone, program, middle, _middle_listener: middle_listener, last_listener, _dir: dir }
    }

    fn create(&self, name: &str) -> File {
        Session::of(self.program.clone()).file(name)
    }

    /// Writes without a copy on the program's side.
    fn write(&self, file: File, offset: u64, bytes: &[u8]) -> Result<usize> {
        let lent = self.program.lend(bytes.len())?;
        lent.sink()?.write_at(0, bytes);
        let how = Write { offset, ..Write::default() };
        let written = self.program.write_in_place(&root(), file, &how, lent, bytes.len()).wait()?;
        Ok(written.count)
    }

    fn named(&self) -> u64 {
        self.middle.sessions.lock().expect("unpoisoned").iter().map(|session| session.counts().named).sum()
    }

    /// Writes until the program's memory is forwarded to the last server.
    fn introduce(&self, file: File) {
        let little = [7; 4096];
        until("the memory is introduced", || {
            self.write(file, 0, &little).expect("written");
            self.named() > 0
        });
    }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

/// Returns the number of resident pages of each read-only mapping of this memory in this process.
fn pages_of_readers(inode: u64) -> Vec<usize> {
    use std::os::unix::fs::FileExt;
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let pagemap = fs::File::open("/proc/self/pagemap").expect("a page map");
    let readers = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (range, access) = (fields.next()?, fields.next()?);
        let found: u64 = fields.nth(2)?.parse().ok()?;
        let (start, end) = range.split_once('-')?;
        let at = |text: &str| u64::from_str_radix(text, 16).expect("an address") / 4096;
        (found == inode && access == "r--s").then(|| at(start)..at(end))
    });
    let count = |range: std::ops::Range<u64>| {
        let mut entries = vec![0; usize::try_from(range.end - range.start).expect("small") * 8];
        pagemap.read_exact_at(&mut entries, range.start * 8).expect("read");
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
    };
    readers.map(count).collect()
}

/// Returns the inodes of the memory shared by clients of links in this process, in order of creation.
fn memory_of_clients() -> Vec<u64> {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let own = maps.lines().filter(|line| line.contains("memfd:tombolo-client") && line.contains("rw-s"));
    let mut inodes: Vec<u64> = own
        .map(|line| line.split_whitespace().nth(4).expect("an inode").parse().expect("a number"))
        .collect();
    inodes.sort_unstable();
    inodes
}

#[test]
fn middle_server_reads_none_of_the_data() {
    let chain = Chain::new(BOTH(), BOTH(), Arc::new(Memory::default()));
    let file = chain.create("file");
    chain.introduce(file);
    let data = bytes(1 << 20, 3);
    let named = chain.named();
    for round in 0..8_u64 {
        assert_eq!(chain.write(file, round << 20, &data).expect("written"), data.len());
    }
    assert_eq!(chain.named() - named, 8, "each of them by reference");
    // Every byte is where it should be, as the program sees it.
    for round in 0..8_u64 {
        let found = chain.program.read_in_place(&root(), file, round << 20, data.len()).wait().expect("read");
        assert!(found.data().to_vec(data.len()) == data, "the data came out changed");
    }
    // Of the program's memory, which two others have mapped, one has read the data and the other none of it.
    let all = memory_of_clients().into_iter().map(pages_of_readers);
    let mut readers: Vec<_> = all.filter(|pages| pages.len() == 2).collect();
    let mut pages = readers.pop().expect("memory with two readers");
    assert!(readers.is_empty(), "only the program's memory is read by two");
    pages.sort_unstable();
    assert!(pages[1] >= 256, "the last one has read a mebibyte: {pages:?} pages");
    // Header, ring, and data copied before the memory was forwarded; the kernel maps up to 16 pages at a
    // time.
    assert!(pages[0] < 128, "the one in the middle has touched the data: {pages:?} pages");
}

#[test]
fn data_are_copied_without_negotiated_region_forwarding() {
    for (program, middle) in [(Features::FORWARDED_REGIONS, BOTH()), (BOTH(), Features::REGION_FORWARDING)] {
        let chain = Chain::new(program, middle, Arc::new(Memory::default()));
        let file = chain.create("file");
        let data = bytes(300_000, 5);
        for round in 0..4_u64 {
            assert_eq!(chain.write(file, round * 300_000, &data).expect("written"), data.len());
        }
        assert_eq!(chain.named(), 0);
        let found = chain.program.read_in_place(&root(), file, 900_000, data.len()).wait().expect("read");
        assert!(found.data().to_vec(data.len()) == data, "the data came out changed");
    }
}

#[test]
fn fragmented_and_concurrent_writes_arrive_exactly() {
    let chain = Chain::new(BOTH(), BOTH(), Arc::new(Memory::default()));
    let first = chain.create("first");
    chain.introduce(first);
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let chain = &chain;
            let file = chain.create(&format!("file-{writer}"));
            scope.spawn(move || {
                for round in 0..50_u8 {
                    let data = bytes(100_000 + usize::from(round), writer.wrapping_mul(50) ^ round);
                    let offset = u64::from(round) * 150_000;
                    assert_eq!(chain.write(file, offset, &data).expect("written"), data.len());
                    let found = chain.program.read_in_place(&root(), file, offset, data.len()).wait();
                    assert!(found.expect("read").data().to_vec(data.len()) == data, "changed");
                }
            });
        }
    });
    assert!(chain.named() >= 200);
}

#[test]
fn end_of_last_server_disconnects_program() {
    let mut chain = Chain::new(BOTH(), BOTH(), Arc::new(Memory::default()));
    let file = chain.create("file");
    chain.introduce(file);
    drop(chain.last_listener.take());
    let result = chain.write(file, 0, &[1; 100_000]);
    assert!(matches!(result, Err(Error::Disconnected)), "{result:?}");
}
