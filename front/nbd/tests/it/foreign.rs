//! Interoperability with the clients of libnbd and QEMU.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tombolo_front_nbd::{Exports, Listeners, Options, Server};
use tombolo_host_tls::{Authority, Request, ServerTls};

use crate::common::{Disk, PAGE, Served};

/// Runs a program that must succeed; returns its output.
fn run(program: &str, arguments: &[&str]) -> String {
    let output: Output = Command::new(program).args(arguments).output().expect(program);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

#[test]
fn nbdinfo_sees_what_the_disk_is() {
    let served = Served::new(Disk::new(256));
    let said = run("nbdinfo", &[&served.url()]);
    for line in [
        "protocol: newstyle-fixed without TLS",
        "export-size: 1048576 (1M)",
        "base:allocation",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "can_fast_zero: true",
        "is_read_only: false",
        "block_size_minimum: 512",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(said.contains(line), "no {line} in {said}");
    }
    let list = run("nbdinfo", &["--list", &served.url().replace("/disk", "/")]);
    assert!(list.contains("export=\"disk\""), "{list}");
    run("nbdinfo", &["--size", &served.url().replace("/disk", "/")]);
}

#[test]
fn nbdcopy_copies_both_ways_and_holes_stay_holes() {
    let served = Served::new(Disk::new(2048));
    let file = served.dir.path().join("image");
    let mut bytes = vec![0; 2048 * PAGE];
    for page in [0, 1, 700, 701, 2047] {
        bytes[page * PAGE..][..PAGE].fill((page % 255) as u8 + 1);
    }
    std::fs::write(&file, &bytes).unwrap();
    run("nbdcopy", &["--destination-is-zero", "--connections=4", file.to_str().unwrap(), &served.url()]);
    assert!(served.disk.bytes() == bytes);
    let back = served.dir.path().join("back");
    run("nbdcopy", &["--connections=4", "--requests=64", &served.url(), back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == bytes);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&back.metadata().unwrap());
    assert!(blocks * 512 < bytes.len() as u64 / 2, "holes were copied as holes: {blocks}");
    let map = run("nbdinfo", &["--map", &served.url()]);
    assert!(
        map.lines().any(|line| line.contains("hole,zero")) && map.lines().any(|line| line.contains("data")),
        "{map}"
    );
}

#[test]
fn qemu_writes_discards_and_zeroes() {
    let served = Served::new(Disk::new(2048));
    let url = served.url();
    let commands = [
        "write -P 7 0 64k",
        "write -f -P 8 1M 4k",
        "write -z 16k 16k",
        "write -z -u 32k 8k",
        "discard 48k 8k",
        "flush",
        "read -P 7 0 16k",
        "read -P 0 16k 16k",
        "read -P 0 32k 8k",
        "read -P 8 1M 4k",
        "read -P 7 40k 8k",
    ];
    let commands: Vec<&str> = commands.into_iter().flat_map(|command| ["-c", command]).collect();
    let said = run("qemu-io", &[&["-f", "raw"], &commands[..], &[&url]].concat());
    assert!(!said.contains("failed"), "{said}");
    let bytes = served.disk.bytes();
    assert!(bytes[..16 << 10].iter().all(|byte| *byte == 7));
    assert!(bytes[1 << 20..][..PAGE].iter().all(|byte| *byte == 8));
    assert!(served.disk.durable_writes.load(std::sync::atomic::Ordering::SeqCst) > 0, "-f is FUA");
    let image = served.dir.path().join("image.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &url, image.to_str().unwrap()]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &url, image.to_str().unwrap()]);
    run("qemu-img", &["bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "4096", &url]);
}

/// Writes a client's certificate and key under the names that GnuTLS programs expect.
fn client_files(authority: &Authority, dir: &Path, name: &str) -> String {
    let until = SystemTime::now() + Duration::from_secs(3600);
    authority.issue(&Request { name: name.into(), hosts: Vec::new(), until }, &dir.join(name)).unwrap();
    for (ours, theirs) in
        [("ca.pem", "ca-cert.pem"), ("cert.pem", "client-cert.pem"), ("key.pem", "client-key.pem")]
    {
        std::fs::copy(dir.join(name).join(ours), dir.join(name).join(theirs)).unwrap();
    }
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn nbd_tls_requires_certificates_of_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(&dir.path().join("ca"), "test-ca").unwrap();
    let until = SystemTime::now() + Duration::from_secs(3600);
    let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    authority.issue(&Request { name: "server".into(), hosts, until }, &dir.path().join("server")).unwrap();
    let known = client_files(&authority, dir.path(), "alice");
    let other = Authority::create(&dir.path().join("other-ca"), "other-ca").unwrap();
    let stranger = client_files(&other, dir.path(), "mallory");
    std::fs::copy(dir.path().join("alice/ca-cert.pem"), dir.path().join("mallory/ca-cert.pem")).unwrap();

    let (mut listeners, mut exports) = (Listeners::default(), Exports::default());
    let address = listeners.add_tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    exports.add("disk", Arc::new(Disk::new(256)));
    let tls = Some(Arc::new(ServerTls::open_for_nbd(&dir.path().join("server")).unwrap()));
    let _server = Server::start(listeners, exports, Options { tls, ..Options::default() }).unwrap();

    let url = |files: &str| format!("nbds://{address}/disk?tls-certificates={files}");
    let said = run("nbdinfo", &[&url(&known)]);
    assert!(said.contains("newstyle-fixed with TLS") && said.contains("base:allocation"), "{said}");
    let file = dir.path().join("image");
    std::fs::write(&file, vec![7; 256 * PAGE]).unwrap();
    run("nbdcopy", &[file.to_str().unwrap(), &url(&known)]);
    run("nbdcopy", &[&url(&known), dir.path().join("back").to_str().unwrap()]);
    assert!(std::fs::read(dir.path().join("back")).unwrap() == vec![7; 256 * PAGE]);
    for refused in [url(&stranger), format!("nbd://{address}/disk")] {
        let output = Command::new("nbdinfo").arg(&refused).output().unwrap();
        assert!(!output.status.success(), "{refused} is let in");
    }
}
