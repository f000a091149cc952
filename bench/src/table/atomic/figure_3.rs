//! Figure 3: cost of encoding and decoding, alone and in a transfer.

use std::hint::black_box;

use tombolo_wire_nfs3::args::StableHow;
use tombolo_wire_nfs3::results::{ReadOk, ReadReply, WriteOk, WriteReply};
use tombolo_wire_nfs3::{Fattr3, FileHandle, FileType3, NfsTime3, SpecData3, WccData, WriteVerifier};
use tombolo_wire_rpc::{Mark, ReplyHeader, Xid};
use tombolo_wire_xdr::{Encode, Encoder};

use super::test_host::{Mover, Serves, TestHost};
use crate::drive::codec::Codec;
use crate::drive::{Direction, Job, Kind};
use crate::error::{Error, Result};
use crate::measure::{Contest, Entrant, Placement, Work};
use crate::nfs::Link;
use crate::nfs::client::Handle;
use crate::report::Report;

const OURS: &str = "our codec";
const RAW: &str = "byte order by hand";
const GENERIC: &str = "nfs3_types";
const CODECS: [(&str, Codec, Kind); 3] = [
    (OURS, Codec::Ours, Kind::Biods),
    (RAW, Codec::Raw, Kind::BiodsRaw),
    (GENERIC, Codec::Generic, Kind::BiodsGeneric),
];

const HEAD: &str = "WRITE call, head";
const WRITTEN: &str = "WRITE reply";
const READ: &str = "READ reply";
const TRANSFER: &str = "64 MiB written by 8 threads";
/// Time at most 1.1 times as long.
const TARGET: f64 = 0.909;
const ROUNDS: usize = 15;
const FILE_BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 32 << 10;
const THREADS: u32 = 8;

const HANDLE: [u8; 37] = [7; 37];
const XID: u32 = 77;
const TIME: NfsTime3 = NfsTime3 { seconds: 1, nseconds: 2 };
const ATTRIBUTES: Fattr3 = Fattr3 {
    file_type: FileType3::Regular,
    mode: 0o644,
    nlink: 1,
    uid: 0,
    gid: 0,
    size: 1 << 20,
    used: 1 << 20,
    rdev: SpecData3 { major: 0, minor: 0 },
    fsid: 1,
    fileid: 2,
    atime: TIME,
    mtime: TIME,
    ctime: TIME,
};

pub(super) fn run(host: &TestHost<'_>) -> Report {
    let mut report = host.report("atomic-figure-3", "Figure 3 of Faber's paper: codecs");
    let contest = Contest { count_max: 2_000_000, ..host.contest(ROUNDS) };
    report.condition_of(&contest);
    for row in [HEAD, WRITTEN, READ] {
        match alone(row) {
            Ok(entrants) => {
                report.contest(row, &contest, entrants);
                compare(&mut report, row);
            }
            Err(error) => report.absent(format!("{row}: {error}")),
        }
    }
    if let Err(error) = transfer(host, &mut report) {
        report.absent(format!("{TRANSFER}: {error}"));
    }
    report.condition(format!(
        "heads: mark, RPC header with AUTH_SYS, and arguments with a handle of {} bytes, into one buffer that is used again; replies: all of the \
         record but file data, with attributes. `{GENERIC}`: 0.5, one function call for each item through `Read` and `Write`. `{RAW}`: numbers put \
         and looked for where they have to be, all attributes among them",
        HANDLE.len()
    ));
    report.condition(format!(
        "`{TRANSFER}`: by the client with a thread for each request, so that only the codec differs; requests of {} KiB, loopback, nothing kept. \
         `{GENERIC}` copies the data behind the head, as XDR's routines do",
        PIECE_BYTES >> 10
    ));
    report.condition(
        "the paper's Figure 3: 64 MB from user programs; plain byte order matches TCP between processes (88 Mb/s), XDR's routines do not",
    );
    report
}

fn compare(report: &mut Report, row: &str) {
    report.compare_cells(row, (OURS, ""), (RAW, ""), Some(TARGET));
    report.compare_cells(row, (OURS, ""), (GENERIC, ""), None);
}

fn transfer(host: &TestHost<'_>, report: &mut Report) -> Result<()> {
    let server = host.server(Link::Loopback, Serves::Nothing)?;
    let file_bytes = host.plan.scaled(FILE_BYTES, 1 << 20);
    let job = Job { direction: Direction::Write, limit: THREADS, piece_bytes: PIECE_BYTES, file_bytes };
    let mut entrants = Vec::new();
    for (column, _, kind) in CODECS {
        let (name, server, serves) = ((column, ""), &server, Serves::Nothing);
        host.enter(&mut entrants, report, TRANSFER, Mover { name, kind, server, serves, job, count_max: 2 });
    }
    report.contest(TRANSFER, &host.contest(ROUNDS), entrants);
    compare(report, TRANSFER);
    Ok(())
}

/// Returns contestants that only encode or only decode.
fn alone(row: &str) -> Result<Vec<Entrant<'static>>> {
    let absent = || Error::Absent("no handle of this length".to_owned());
    let file = FileHandle::new(&HANDLE).ok_or_else(absent)?.to_owned();
    let record = if row == READ { read_record() } else { write_record() };
    let entrant = |(column, codec, _): (&str, Codec, Kind)| {
        let work = if row == HEAD { heads(codec, file) } else { replies(codec, record.clone(), row == READ) };
        Entrant::new((column, ""), work, &[], None::<Placement>)
    };
    Ok(CODECS.into_iter().map(entrant).collect())
}

fn heads(codec: Codec, file: Handle) -> Work<'static> {
    let mut out = Vec::new();
    Work::new(move |count, clock| {
        clock.start();
        for number in 0..count {
            out.clear();
            let (file, offset) = (black_box(&file), black_box(number));
            black_box(codec.write_call(&mut out, XID, file, offset, &[]));
        }
        clock.lap_of(count);
        Ok(())
    })
}

fn replies(codec: Codec, record: Vec<u8>, read: bool) -> Work<'static> {
    Work::new(move |count, clock| {
        clock.start();
        for _ in 0..count {
            let record = black_box(&record);
            let moved = if read { codec.read_reply(record, XID) } else { codec.write_reply(record, XID) };
            if black_box(moved).is_none() {
                return Err(Error::Wrong { what: "codec".to_owned(), answer: "no reply".to_owned() });
            }
        }
        clock.lap_of(count);
        Ok(())
    })
}

fn write_record() -> Vec<u8> {
    record(&WriteReply::Ok(WriteOk {
        file_wcc: WccData { before: None, after: Some(ATTRIBUTES) },
        count: PIECE_BYTES as u32,
        committed: StableHow::Unstable,
        verifier: WriteVerifier::default(),
    }))
}

/// Returns a reply without data, which the codec does not process.
fn read_record() -> Vec<u8> {
    record(&ReadReply::Ok(ReadOk::to_send(Some(ATTRIBUTES), 0, true)))
}

fn record(results: &impl Encode) -> Vec<u8> {
    let mut record = vec![0; Mark::BYTES];
    let mut xdr = Encoder::new(&mut record);
    xdr.value(&ReplyHeader::success(Xid(XID))).value(results);
    let len = xdr.position();
    if let (Some(mark), Some(place)) = (Mark::whole(len), record.first_chunk_mut()) {
        *place = mark.to_bytes();
    }
    record
}
