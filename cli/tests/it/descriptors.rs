//! Clients that exhaust their descriptors do not affect other clients, new ones, or the control socket.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{MountPlace, Mounted, Ran, Scratch, until, words};
use tombolo_sys::process;

const LIMIT: usize = 2048;
/// "Too many open files in system" (open(2)).
const ENFILE: i32 = 23;

/// Mounts the link at a new directory.
fn mounted(scratch: &Scratch, name: &str) -> Mounted {
    fs::create_dir(scratch.path(name)).expect("mkdir");
    scratch.run(format!("mount shm:link/tree {name}")).succeeded();
    Mounted(scratch.path(name))
}

/// Opens a file repeatedly until that fails.
fn open_all(file: &Path) -> Vec<File> {
    let mut open = Vec::new();
    loop {
        match File::open(file) {
            Ok(one) => open.push(one),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(ENFILE), "{error}");
                return open;
            }
        }
        assert!(open.len() < LIMIT, "there is no end to it");
    }
}

fn open_some(file: &Path, count: usize) -> Vec<File> {
    (0..count).map(|number| File::open(file).unwrap_or_else(|error| panic!("{number}: {error}"))).collect()
}

/// Sends a VMM's first request (GET_FEATURES of vhost-user), which a rejected guest gets no reply to.
fn is_let_in(socket: &Path) -> bool {
    let mut stream = UnixStream::connect(socket).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
    let question = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
    stream.write_all(&question).is_ok() && stream.read_exact(&mut [0; 20]).is_ok()
}

#[test]
fn descriptor_exhaustion_does_not_affect_other_clients() {
    let Some(place) = MountPlace::new() else { return };
    let scratch = &place.0;
    process::raise_open_file_limit().expect("this test opens files too");
    fs::create_dir(scratch.path("many")).expect("mkdir");
    (0..200).for_each(|number| fs::write(scratch.path("many").join(number.to_string()), "x").expect("write"));

    let limit = format!("--nofile={LIMIT}:{LIMIT}");
    let program = env!("CARGO_BIN_EXE_tombolo");
    let line = format!("{limit} {program} serve tree --fuse mnt --shm link --nfs 0 --squash none");
    let command = scratch.program("prlimit", &words(&format!("{line} --virtiofs guest --state kept")));
    let server = scratch.started(command, "ready control");
    let nfs = format!("nfs://{}/tree", server.nfs_address());
    let other = mounted(scratch, "other");

    // A guest, then a link.
    let greedy = open_all(&scratch.path("mnt/file"));
    let third = mounted(scratch, "third");
    let greedy_link = open_all(&third.0.join("file"));
    let (many, more) = (greedy.len(), greedy_link.len());
    assert!(many > LIMIT / 8 && more > LIMIT / 16, "{many} {more}");

    let begun = Instant::now();
    drop(open_some(&other.0.join("file"), 60));
    fs::write(other.0.join("new"), "written").expect("a file is made");
    let newcomer = mounted(scratch, "newcomer");
    drop(open_some(&newcomer.0.join("file"), 30));
    assert!(is_let_in(&scratch.path("guest")), "a new guest waits");
    scratch.run(format!("cp -q -r many {nfs}/many")).succeeded();
    scratch.run(format!("cp -q -r {nfs}/many back")).succeeded();
    assert_eq!(fs::read_dir(scratch.path("back")).expect("list").count(), 200);
    let top = scratch.run("top --once").succeeded();
    top.says(&["/tree by virtiofs"]);
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());

    // Released descriptors can be used again.
    drop((greedy, greedy_link));
    until("what was closed can be opened", || open_all(&scratch.path("mnt/file")).len() > many / 2);
    drop((other, third, newcomer));
    server.stop();
}

fn serve_many(scratch: &Scratch, limit: usize, exports: usize) -> Command {
    let limit = format!("--nofile={limit}:{limit}");
    let exports: String = (0..exports).map(|number| format!("tree=/{number} ")).collect();
    let line = format!("{limit} {} serve {exports} --nfs 0 --state kept", env!("CARGO_BIN_EXE_tombolo"));
    scratch.program("prlimit", &words(&line))
}

/// Calls the NULL procedure (RFC 5531 §9; RFC 1813 §3.3.0).
fn is_served(stream: &mut TcpStream) -> bool {
    let call = [0x8000_0028u32, 1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    stream.write_all(&call).is_ok() && stream.read_exact(&mut [0; 28]).is_ok()
}

#[test]
fn many_exports_reserve_nfs_descriptors_or_fail() {
    let scratch = &Scratch::new();
    let server = scratch.started(serve_many(scratch, 1024, 7), "ready control");
    let connect = |_| TcpStream::connect(server.nfs_address()).expect("connect");
    let mut streams: Vec<_> = (0..16).map(connect).collect();
    assert!(streams.iter_mut().all(is_served));
    server.stop();
    let said = ["cannot serve NFS", "fewer than 32 descriptors", "LimitNOFILE=524288"];
    Ran::new(serve_many(scratch, 400, 3)).failed(1, &said);
}
