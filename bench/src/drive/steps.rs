//! Clients as the steps of Table 2 of Faber's paper leave them: one sending and one receiving thread, and the
//! overhead that the step has not removed yet ([`Step`]). The RPC client is Tombolo's, used in a loop.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::WRITE3args;
use nfs3_types::xdr_codec::Pack;
use tombolo_core::Answer;
use tombolo_host_rpc::client::{Call, InFlight, Options, Pending, Reply, RpcClient, Target, Transport};
use tombolo_mem::Buffer;
use tombolo_wire_nfs3::args::{StableHow, WriteArgs};
use tombolo_wire_nfs3::results::WriteReply;
use tombolo_wire_nfs3::{self as nfs3, Data, PROGRAM, Procedure, VERSION};
use tombolo_wire_xdr::{Decoder, Encoder};

use super::codec::generic::write_args;
use super::ours::filled;
use super::{Client, Direction, DriveArgs, Job};
use crate::error::{Doing, Error, OrWrong, Result};
use crate::nfs::Wait;
use crate::nfs::client::{Handle, Mounted, Reply as Answered, commit, committed, root};

/// Overhead that a step leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Data copied into the request, and again by the generic XDR library.
    Copies,
    /// Data sent from their place; arguments encoded by the library.
    GenericCodec,
    /// No overhead of the two.
    Lean,
}

pub struct Steps {
    step: Step,
    mounted: Mounted,
    rpc: RpcClient,
    file: String,
    memory: Buffer,
    /// The bytes of `memory`, for [`Step::Copies`].
    content: Vec<u8>,
    /// The copy of a request's data, for [`Step::Copies`].
    request: Vec<u8>,
}

impl Steps {
    pub fn new(args: &DriveArgs, step: Step) -> Result<Self> {
        let mounted = Mounted::at((args.nfs, args.mount), &args.export, Wait::Sleep)?;
        let target =
            Target { address: args.nfs, transport: Transport::Tcp, program: PROGRAM, version: VERSION };
        let rpc = RpcClient::start(target, Options::default()).doing(|| "start a client".to_owned())?;
        let (memory, content, request) = (Buffer::new(0), Vec::new(), Vec::new());
        Ok(Self { step, mounted, rpc, file: args.file.clone(), memory, content, request })
    }

    fn send(&mut self, file: &Handle, (at, bytes): (usize, usize)) -> Pending {
        let mut call = Call { bulk: true, ..Call::new(Procedure::Write.number(), root()) };
        if self.step == Step::Copies {
            // The program may change its memory meanwhile, so the request needs a copy.
            self.request.clear();
            self.request.extend_from_slice(self.content.get(at..at + bytes).unwrap_or_default());
            let args = write_args(file, at as u64, &self.request);
            return self.rpc.call(call, |xdr| pack(&args, xdr));
        }
        call.data = Some(self.memory.source(at..at + bytes));
        let (offset, count) = (at as u64, u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.step == Step::GenericCodec {
            let WRITE3args { file, offset, stable, .. } = write_args(file, at as u64, &[]);
            return self.rpc.call(call, |xdr| {
                pack(&file, xdr);
                pack(&offset, xdr);
                pack(&count, xdr);
                pack(&stable, xdr);
                pack(&count, xdr);
            });
        }
        let (stable, data) = (StableHow::Unstable, Data::to_send(count));
        let args = WriteArgs { file: file.as_handle(), offset, count, stable, data };
        self.rpc.call(call, |xdr| {
            xdr.value(&args);
        })
    }
}

impl Client for Steps {
    fn transfer(&mut self, job: &Job) -> Result<Duration> {
        if job.direction != Direction::Write {
            return Err(Error::Absent("a step writes unstable only".to_owned()));
        }
        self.rpc.set_in_flight(InFlight::Fixed(job.limit));
        let file = self.mounted.walk(&self.file.clone())?;
        if self.memory.len() < job.file_bytes {
            (self.memory, self.content) = (filled(job.file_bytes), super::content(job.file_bytes));
        }
        let begun = Instant::now();
        let mut pending = VecDeque::new();
        for piece in job.each() {
            if !self.rpc.has_permit() {
                let permit = self.rpc.permit();
                let waited = Answer::later(async move {
                    permit.await;
                    Ok(())
                });
                waited.wait().or_wrong("WRITE")?;
            }
            pending.push_back((piece.1, self.send(&file, piece)));
            while let Some((bytes, done)) = pending.pop_front_if(|(_, first)| first.is_ready()) {
                check(done, bytes)?;
            }
        }
        for (bytes, done) in pending {
            check(done, bytes)?;
        }
        let mut reply = Answered::default();
        self.mounted.connection.call(&mut commit(&file), &mut reply)?;
        committed(&reply)?;
        Ok(begun.elapsed())
    }
}

fn check(pending: Pending, bytes: usize) -> Result<()> {
    let Reply { results, .. } = pending.wait().or_wrong("WRITE")?;
    match Decoder::new(&results).value::<WriteReply>() {
        Ok(nfs3::Reply::Ok(ok)) if ok.count as usize == bytes => Ok(()),
        other => Err(Error::Wrong { what: "WRITE".to_owned(), answer: format!("{other:?}") }),
    }
}

fn pack(value: &impl Pack, xdr: &mut Encoder<'_>) {
    // Writing to memory does not fail.
    let _packed = value.pack(&mut Packed(xdr));
}

/// Adapter of our encoder for the library.
struct Packed<'e, 'b>(&'e mut Encoder<'b>);

impl io::Write for Packed<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.raw(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
