//! Compressed writes to a distant Tombolo server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_conformance::waist::World;
use tombolo_core::Error;
use tombolo_core::fs::SyncScope;
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_client_tests::server::{ReceivedCall, Scripted, ScriptedReply};
use tombolo_nfs_tests::test_server::TestServer;
use tombolo_wire_nfs3::results::WriteOk;
use tombolo_wire_nfs3::side::{self, UnpackReply};
use tombolo_wire_nfs3::{Procedure, Status, WccData};
use tombolo_wire_rpc::{Accepted, ReplyHeader};
use tombolo_wire_xdr::{Decode, Decoder, Encoder};

use crate::packing::{DELAY, LOOKS, noise, text};

/// A server and its client behind a connection with this delay and these replies to UNPACK.
struct Site {
    direct: World,
    line: Scripted,
    far: World,
    _origin: TestServer,
}

impl Site {
    fn new(delay: Duration, says: impl Fn(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) -> Self {
        let origin = TestServer::over(Memory::default());
        let direct = world(mounted(origin.address(), hard()));
        let line = Scripted::start(origin.address(), move |asked| {
            let is_unpack = asked.is_side(side::Procedure::Unpack);
            let reply = if is_unpack { says(asked) } else { ScriptedReply::Forward };
            if delay.is_zero() { reply } else { ScriptedReply::After(delay, Box::new(reply)) }
        });
        let far = direct.through(mounted(line.address(), hard()));
        // Calls from which the client measures the round trip: most are fast on a fast connection, even on a
        // busy machine.
        for n in 0..LOOKS {
            assert!(far.lookup(&format!("none-{n}")).is_err());
        }
        Self { direct, line, far, _origin: origin }
    }

    /// Writes a file over the distant connection and syncs it.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let file = self.far.file(name);
        self.far.write_all(file, 0, bytes);
        let synced = self.far.fs.fsync(&self.far.cx, file, SyncScope::All).wait();
        self.far.release(file);
        synced
    }

    /// Returns the numbers of compressed and plain writes.
    fn calls(&self) -> (usize, usize) {
        (self.line.count_of_side(side::Procedure::Unpack), self.line.count_of(Procedure::Write))
    }
}

#[test]
fn only_distant_writes_of_compressible_data_are_compressed() {
    for (delay, bytes, is_packed) in
        [(DELAY, text(0), true), (Duration::ZERO, text(0), false), (DELAY, noise(), false)]
    {
        let site = Site::new(delay, |_| ScriptedReply::Forward);
        site.write("file", &bytes).expect("written");
        assert!(site.direct.contents("file") == bytes);
        let (packed, plain) = site.calls();
        assert_eq!((packed > 0, plain > 0), (is_packed, !is_packed), "{delay:?}: {packed}, {plain}");
    }
}

#[test]
fn server_without_unpack_gets_plain_writes() {
    let site = Site::new(DELAY, |asked| asked.header(|xid| ReplyHeader::accept(xid, Accepted::ProcUnavail)));
    site.write("first", &text(0)).expect("written");
    let (packed, _) = site.calls();
    site.write("second", &text(1)).expect("written");
    assert!(site.direct.contents("first") == text(0) && site.direct.contents("second") == text(1));
    assert!(packed > 0 && site.calls().0 == packed, "asked once, and what was under way beside it: {packed}");
}

#[test]
fn jukebox_reply_to_unpack_is_retried() {
    let times = Arc::new(AtomicUsize::new(0));
    let site = Site::new(DELAY, move |asked| match times.fetch_add(1, Ordering::Relaxed) {
        0 => asked.results(&UnpackReply::Failed(Status::Jukebox, WccData::NONE)),
        _ => ScriptedReply::Forward,
    });
    site.write("file", &text(0)).expect("written");
    assert!(site.direct.contents("file") == text(0));
    assert_eq!(site.calls().1, 0);
}

#[test]
fn unpack_failure_is_reported_like_a_write_failure() {
    let site = Site::new(DELAY, |asked| asked.results(&UnpackReply::Failed(Status::NoSpc, WccData::NONE)));
    let written = site.write("file", &text(0));
    assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
}

/// Takes a part of each frame, as a WRITE may.
#[test]
fn short_compressed_write_is_continued() {
    let site = Site::new(DELAY, |_| {
        ScriptedReply::edited(|results| {
            if let Ok(UnpackReply::Ok(ok)) = UnpackReply::decode(&mut Decoder::new(results)) {
                results.clear();
                let less = WriteOk { count: ok.count.div_ceil(2), ..ok };
                Encoder::new(results).value(&UnpackReply::Ok(less));
            }
        })
    });
    site.write("file", &text(0)).expect("written");
    assert!(site.direct.contents("file") == text(0));
    assert!(site.calls().0 > 2, "{:?}", site.calls());
}
