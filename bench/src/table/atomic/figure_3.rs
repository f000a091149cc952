//! Figure 3: cost of encoding and decoding, alone and in a transfer.

use std::hint::black_box;

use tombolo_wire_nfs3::args::StableHow;
use tombolo_wire_nfs3::results::{ReadOk, ReadReply, WriteOk, WriteReply};
use tombolo_wire_nfs3::{Fattr3, FileHandle, FileType3, NfsTime3, SpecData3, WccData, WriteVerifier};
use tombolo_wire_rpc::{Mark, ReplyHeader, Xid};
use tombolo_wire_xdr::{Encode, Encoder};

use super::test_host::{Mover, TestHost, Transfer};
use crate::drive::codec::Codec;
use crate::error::{Error, Result};
use crate::measure::{Contest, Entrant, Placement, Work};
use crate::nfs::client::Handle;
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

const CODECS: [(&str, Codec); 3] =
    [("our codec", Codec::Ours), ("byte order by hand", Codec::Raw), ("nfs3_types", Codec::Generic)];

const HEAD: &str = "WRITE call, head";
const WRITTEN: &str = "WRITE reply";
const READ: &str = "READ reply";
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

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_, Transfer, Mover> = host.described(sheet!(host.plan, "atomic-figure-3")?);
    let mut report = sheet.report();
    let contest = sheet.contest(host.contest());
    for row in [HEAD, WRITTEN, READ] {
        match alone(row) {
            Ok(entrants) => drop(report.contest(row, &Contest { count_max: 2_000_000, ..contest }, entrants)),
            Err(error) => report.absent(format!("{row}: {error}")),
        }
    }
    for transfer in &sheet.rows {
        let done = host.transfer(&mut report, &contest, transfer, &sheet.columns);
        report.or_absent(&transfer.name, done.map(drop))?;
    }
    Ok(sheet.finish(report))
}

/// Returns contestants that only encode or only decode.
fn alone(row: &str) -> Result<Vec<Entrant<'static>>> {
    let absent = || Error::Absent("no handle of this length".to_owned());
    let file = FileHandle::new(&HANDLE).ok_or_else(absent)?.to_owned();
    let record = if row == READ { read_record() } else { write_record() };
    let entrant = |(column, codec): (&str, Codec)| {
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
        count: 32 << 10,
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
