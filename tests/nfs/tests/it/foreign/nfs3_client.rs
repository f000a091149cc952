//! `nfs3_client` and `nfs3_types`.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::net::Connector;
use nfs3_client::{MountClient, Nfs3Connection, Nfs3ConnectionBuilder};
use nfs3_types::mount::dirpath;
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_types::xdr_codec::Opaque;

use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_nfs_tests::test_server::PATH;

/// A socket whose calls wait, and are ready when they return.
struct Waiting(TcpStream);

impl AsyncRead for Waiting {
    async fn async_read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl AsyncWrite for Waiting {
    async fn async_write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        self.0.write(from)
    }
}

struct Plain;

impl Connector for Plain {
    type Connection = Waiting;

    async fn connect(&self, address: SocketAddr) -> std::io::Result<Waiting> {
        TcpStream::connect(address).map(Waiting)
    }

    async fn connect_with_port(&self, address: SocketAddr, _: u16) -> std::io::Result<Waiting> {
        self.connect(address).await
    }
}

/// The result of a future that never has to wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the socket waits, the future does not"),
    }
}

fn mount(fixture: &Fixture) -> Nfs3Connection<Waiting> {
    let address = fixture.server.address();
    let builder = Nfs3ConnectionBuilder::new(Plain, address.ip().to_string(), PATH)
        .connect_from_privileged_port(false)
        .mount_port(address.port())
        .nfs3_port(address.port())
        .credential(opaque_auth::auth_unix(&auth_unix::default()));
    now(builder.mount()).expect("mounted")
}

fn at<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: name.as_bytes().into() }
}

fn attributes(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

/// What an optional value must hold.
#[track_caller]
fn told<T: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(value: Nfs3Option<T>) -> T {
    match value {
        Nfs3Option::Some(value) => value,
        Nfs3Option::None => panic!("not told"),
    }
}

#[test]
fn nfs3_client_makes_writes_reads_and_removes() {
    on_each(|fixture| {
        let mut nfs = mount(fixture);
        let root = nfs.root_nfs_fh3();
        now(nfs.null()).expect("NULL");
        let made = MKDIR3args { where_: at(&root, "dir"), attributes: attributes(0o755) };
        let dir = told(now(nfs.mkdir(&made)).expect("MKDIR").unwrap().obj);
        let created = CREATE3args { where_: at(&dir, "file"), how: createhow3::GUARDED(attributes(0o640)) };
        let created = now(nfs.create(&created)).expect("CREATE").unwrap();
        let file = told(created.obj);
        assert_eq!(told(created.obj_attributes).mode, 0o640);
        let data = Opaque::borrowed(b"written by another client");
        let (offset, count, stable) = (0, data.len() as u32, stable_how::FILE_SYNC);
        let written = WRITE3args { file: file.clone(), offset, count, stable, data };
        let written = now(nfs.write(&written)).expect("WRITE").unwrap();
        assert_eq!((written.count, written.committed), (count, stable_how::FILE_SYNC));
        assert_eq!(told(written.file_wcc.before).size, 0);
        assert_eq!(told(written.file_wcc.after).size, u64::from(count));
        let committed = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        assert_eq!(now(nfs.commit(&committed)).expect("COMMIT").unwrap().verf, written.verf);
        let read = READ3args { file: file.clone(), offset: 8, count: 100 };
        let read = now(nfs.read(&read)).expect("READ").unwrap();
        assert_eq!((read.data.as_ref(), read.eof), (&b"by another client"[..], true));
        let renamed = RENAME3args { from: at(&dir, "file"), to: at(&root, "moved") };
        now(nfs.rename(&renamed)).expect("RENAME").unwrap();
        let linked = LINK3args { file: file.clone(), link: at(&dir, "linked") };
        let linked = now(nfs.link(&linked)).expect("LINK").unwrap();
        assert_eq!(told(linked.file_attributes).nlink, 2);
        for (parent, name) in [(&dir, "linked"), (&root, "moved")] {
            now(nfs.remove(&REMOVE3args { object: at(parent, name) })).expect("REMOVE").unwrap();
        }
        now(nfs.rmdir(&RMDIR3args { object: at(&root, "dir") })).expect("RMDIR").unwrap();
        match now(nfs.getattr(&file.into())).expect("GETATTR") {
            Nfs3Result::Err((status, _)) => assert_eq!(status, nfsstat3::NFS3ERR_STALE),
            Nfs3Result::Ok(_) => panic!("the file is gone"),
        }
        assert_eq!(fixture.names(), Vec::<String>::new());
        now(nfs.unmount()).expect("UMNT");
        assert_eq!(fixture.nfs.dump(), []);
    });
}

#[test]
fn nfs3_client_looks_around() {
    on_each(|fixture| {
        let mut nfs = mount(fixture);
        let root = nfs.root_nfs_fh3();
        let fifo = MKNOD3args { where_: at(&root, "fifo"), what: mknoddata3::NF3FIFO(attributes(0o600)) };
        now(nfs.mknod(&fifo)).expect("MKNOD").unwrap();
        let symlink =
            symlinkdata3 { symlink_attributes: attributes(0o777), symlink_data: b"target"[..].into() };
        let symlink = SYMLINK3args { where_: at(&root, "link"), symlink };
        let link = told(now(nfs.symlink(&symlink)).expect("SYMLINK").unwrap().obj);
        let readlink = now(nfs.readlink(&READLINK3args { symlink: link })).expect("READLINK").unwrap();
        assert_eq!(readlink.data.as_ref(), b"target");
        let (dir, cookie, cookieverf) = (root.clone(), 0, cookieverf3::default());
        let plus = READDIRPLUS3args { dir: dir.clone(), cookie, cookieverf, dircount: 4096, maxcount: 8192 };
        let plus = now(nfs.readdirplus(&plus)).expect("READDIRPLUS").unwrap();
        assert!(plus.reply.eof);
        let entries = plus.reply.entries.into_inner();
        assert_eq!(entries.len(), 4);
        for entry in entries.iter().filter(|entry| !entry.name.as_ref().starts_with(b".")) {
            let looked = LOOKUP3args { what: diropargs3 { dir: root.clone(), name: entry.name.clone() } };
            let looked = now(nfs.lookup(&looked)).expect("LOOKUP").unwrap();
            assert_eq!(told(entry.name_handle.clone()), looked.object);
            assert_eq!(told(entry.name_attributes.clone()).fileid, entry.fileid);
        }
        let readdir = READDIR3args { dir, cookie, cookieverf, count: 4096 };
        let readdir = now(nfs.readdir(&readdir)).expect("READDIR").unwrap();
        assert_eq!(readdir.reply.entries.into_inner().len(), 4);
        let access = ACCESS3args { object: root.clone(), access: 0x3f };
        assert_eq!(now(nfs.access(&access)).expect("ACCESS").unwrap().access, 0x1f);
        let mtime = set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 12, nseconds: 34 });
        let new_attributes = sattr3 { mtime, ..sattr3::default() };
        let set = SETATTR3args { object: root.clone(), new_attributes, guard: Nfs3Option::None };
        let set = now(nfs.setattr(&set)).expect("SETATTR").unwrap();
        assert_eq!(told(set.obj_wcc.after).mtime, nfstime3 { seconds: 12, nseconds: 34 });
        let info = now(nfs.fsinfo(&root.clone().into())).expect("FSINFO").unwrap();
        assert!(info.rtmax >= 65_536 && info.wtmax >= 65_536);
        assert!(now(nfs.fsstat(&root.clone().into())).expect("FSSTAT").unwrap().tbytes > 0);
        assert_eq!(now(nfs.pathconf(&root.into())).expect("PATHCONF").unwrap().name_max, 255);
    });
}

#[test]
fn nfs3_client_mounts() {
    let fixture = Fixture::in_memory();
    let connection = now(Plain.connect(fixture.server.address())).expect("a connection");
    let mut mounts = MountClient::new(connection);
    now(mounts.null()).expect("NULL");
    let path = || dirpath(Opaque::borrowed(PATH.as_bytes()));
    let mounted = now(mounts.mnt(path())).expect("MNT");
    assert_eq!(mounted.fhandle.0.as_ref(), fixture.root.as_handle().as_bytes());
    assert!(now(mounts.mnt(dirpath(Opaque::borrowed(b"/nothing")))).is_err());
    now(mounts.umnt(path())).expect("UMNT");
    now(mounts.umntall()).expect("UMNTALL");
}
