//! Links over a file that both sides can write.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tombolo_host_links::End;
use tombolo_host_links::client::Line;
use tombolo_host_links::memory::{CommonMemory, MemoryError, MemoryPlace};
use tombolo_host_links::seated::{JoinError, MemoryListener, MemoryTether, join};
use tombolo_host_links::server::Server;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Limits, PageError, RefusalCode};
use tombolo_shm::region::RegionError;

use crate::door::common::{Bed, Echo, until, works};

const BYTES: u64 = 1 << 20;

fn listen(path: &Path) -> MemoryListener {
    let memory = CommonMemory::to_serve(&MemoryPlace::File(path.into()), Some(BYTES)).expect("memory");
    let (opened, closed) = (mpsc::channel().0, mpsc::channel().0);
    let server = Arc::new(Server::new(Arc::new(Echo { opened, closed })));
    MemoryListener::start(memory, server, Limits::default(), Mode::Adaptive, "guest").expect("a listener")
}

fn try_join(path: &Path, export: &str, timeout: Duration) -> Result<(Line, MemoryTether), JoinError> {
    let memory = CommonMemory::to_use(&MemoryPlace::File(path.into())).expect("memory");
    let mut options = Bed::options(export);
    options.timeout = timeout;
    join(memory, &options, "link", Mode::Adaptive)
}

fn joined(path: &Path) -> (Line, MemoryTether) {
    let page = MemoryPlace::File(path.into());
    // The server's thread writes the page.
    until("a page", || CommonMemory::to_use(&page).is_ok());
    try_join(path, "/src", Duration::from_secs(30)).expect("a link")
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("memory");
    (dir, path)
}

#[test]
fn clients_come_one_after_the_other() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    for _ in 0..3 {
        let (line, tether) = joined(&path);
        assert!((0..100).all(|_| works(&line)));
        let second = try_join(&path, "/src", Duration::ZERO).map(drop);
        assert!(matches!(second, Err(JoinError::Busy)), "{second:?}");
        drop(tether);
        assert!(line.is_lost());
    }
}

#[test]
fn a_server_that_leaves_says_so_and_one_that_comes_after_is_found() {
    let (_dir, path) = place();
    let listener = listen(&path);
    let (line, _tether) = joined(&path);
    drop(listener);
    until("the line is lost", || line.is_lost());
    assert_eq!(line.end(), Some(End::Left));
    let _listener = listen(&path);
    assert!(works(&joined(&path).0));
}

#[test]
fn a_refusal_is_read_and_the_next_is_heard() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    drop(joined(&path));
    let none = try_join(&path, "/none", Duration::from_secs(30)).map(drop);
    assert!(
        matches!(&none, Err(JoinError::Refused(refused)) if refused.code == RefusalCode::NoExport),
        "{none:?}"
    );
    assert!(works(&joined(&path).0));
}

#[test]
fn one_server_at_a_time_and_none_before_the_first() {
    let (_dir, path) = place();
    let place = MemoryPlace::File(path.clone());
    let first = CommonMemory::to_serve(&place, Some(BYTES)).expect("memory");
    let second = CommonMemory::to_serve(&place, None);
    assert!(matches!(second, Err(MemoryError::Region(RegionError::Busy { .. }))), "{second:?}");
    let early = CommonMemory::to_use(&place);
    assert!(matches!(early, Err(MemoryError::Page { source: PageError::Blank, .. })), "{early:?}");
    drop(first);
    assert!(CommonMemory::to_serve(&place, None).is_ok());
    let device = MemoryPlace::Mmapper(path);
    assert!(matches!(CommonMemory::to_serve(&device, None), Err(MemoryError::Length { .. })));
}

/// A UML guest's device does not say how long it is; a plain file stands for it here.
#[test]
fn a_device_without_a_length_learns_it_from_the_page() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    drop(joined(&path));
    let memory = CommonMemory::to_use(&MemoryPlace::Mmapper(path)).expect("memory");
    let mut options = Bed::options("/src");
    options.timeout = Duration::from_secs(30);
    let (line, _tether) = join(memory, &options, "link", Mode::Adaptive).expect("a link");
    assert!(works(&line));
}

#[test]
fn whoever_breaks_the_rules_is_told_and_the_next_gets_the_memory() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    let (line, _tether) = joined(&path);
    assert!(line.call(9, [0; 48], |_| ()).wait().is_err());
    let why = line.end().expect("lost").to_string();
    assert!(why.contains("kind 9"), "{why}");
    assert!(works(&joined(&path).0));
}
