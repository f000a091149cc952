//! From how many bytes on it is cheaper to refer to data than to send them inside the message: reads and writes of the same bytes both
//! ways, straight on a link.

use std::any::Any;

use tombolo_core::fs::{File, Name, NodeId, OpenFlags, OpenId, Write};
use tombolo_host_links::client::{Call, Line, Spans};
use tombolo_mem::Buffer;
use tombolo_shm::bell::Mode;
use tombolo_wire_vrpc::{
    BODY_BYTES, CallerId, Data, FRAME_BYTES, FrameBuf, Groups, Header, Kind, Place as Where, Reference,
    Reply, Request, Returned,
};

use super::door::Door;
use super::server::{Meeting, Serving};
use super::{AT_ONCE, FILE, Plan, speed, timed_by, wrong};
use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Entrant, Place, Work};
use crate::report::{Figure, Picture, Report};

const INSIDE: &str = "inside the message";
const REFERRED: &str = "by reference";
const ROWS: [(&str, bool); 2] = [("read", false), ("write", true)];

/// How many bytes. More than a frame holds cannot go inside.
const SIZES: [usize; 9] = [64, 128, 256, 512, 1024, 1536, 2048, 3072, FRAME_BYTES];

/// Measures.
pub fn run(plan: &Plan) -> Result<Report> {
    let title = "Data inside the message, and by reference";
    let mut report = Report::new("ring-border", title, plan.command.clone(), plan.quick);
    report.picture = Picture::Curves;
    let folder = tempfile::Builder::new().prefix("tombolo-bench.").tempdir_in(&plan.within);
    let folder = folder.doing_to("make a directory in", &plan.within)?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let serving = Serving::start(&shared, folder.path(), Meeting::Sockets)?;
    let mut contest = plan.contest();
    contest.count_syscalls = false;
    for (row, writes) in ROWS {
        let mut entrants = Vec::new();
        for bytes in SIZES {
            for (column, refers) in [(INSIDE, false), (REFERRED, true)] {
                entrants.push(Entrant {
                    name: (column.to_owned(), size(bytes)),
                    work: Box::new(Carried { door: serving.door(Mode::Poll), writes, refers, bytes }),
                    servers: vec![serving.id()],
                    place: Some(Place::TwoCores),
                });
            }
        }
        let (series, dropped) = contest.run(entrants);
        report.take(row, &series, &dropped);
    }
    Place::leave()?;
    for figure in &mut report.figures {
        figure.cost = None;
        figure.x = SIZES.into_iter().find(|bytes| size(*bytes) == figure.variant).map(|bytes| bytes as f64);
    }
    judge(&mut report);
    report.condition_of(&contest);
    report.condition(format!(
        "both sides poll; straight on the link, with the copies that the library makes: inside, out of the caller's memory into the message or \
         back; by reference, out of it into the link's memory or back. {AT_ONCE} operations between two looks at the clock"
    ));
    Ok(report)
}

fn size(bytes: usize) -> String {
    format!("{bytes} B")
}

/// From which size on referring is cheaper, for all that are larger.
fn judge(report: &mut Report) {
    for (row, _) in ROWS {
        let mut border = None;
        for bytes in SIZES.into_iter().rev() {
            let variant = size(bytes);
            let figure = |column: &str| report.figure(row, column, &variant).cloned();
            let (Some(inside), Some(referred)) = (figure(INSIDE), figure(REFERRED)) else { continue };
            report.compare(Some(&referred), Some(&inside), None);
            if !is_cheaper(&referred, &inside) {
                break;
            }
            border = Some(bytes);
        }
        let found = match border {
            Some(bytes) => format!("from {bytes} B on"),
            None => format!("not up to {FRAME_BYTES} B"),
        };
        report.aim(&format!("{row}: by reference is cheaper"), "printed", found, None);
    }
}

/// By the median of the rounds' differences.
fn is_cheaper(one: &Figure, other: &Figure) -> bool {
    let mut differences: Vec<f64> =
        one.rounds.iter().zip(&other.rounds).map(|(one, other)| one - other).collect();
    differences.sort_by(f64::total_cmp);
    differences.get(differences.len() / 2).is_some_and(|middle| *middle < 0.0)
}

/// Moves the same bytes over and over, one way.
struct Carried {
    door: Door,
    writes: bool,
    refers: bool,
    bytes: usize,
}

impl Work for Carried {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let carrier = Carrier::new(&self.door, self.bytes)?;
        timed_by(AT_ONCE, count, clock, || carrier.carry(self.writes, self.refers))
    }
}

/// A link, the open file, and memory of the program.
struct Carrier {
    line: Line,
    // It keeps the link.
    _keep: Box<dyn Any + Send + Sync>,
    file: File,
    buffer: Buffer,
    bytes: usize,
}

impl Carrier {
    fn new(door: &Door, bytes: usize) -> Result<Self> {
        let (line, keep) = door.link().map_err(|error| wrong("a link", error.as_ref()))?;
        let mut carrier = Self {
            line,
            _keep: keep,
            file: File { node: NodeId::ROOT, open: OpenId(0) },
            buffer: Buffer::new(bytes),
            bytes,
        };
        // Number 0 is the superuser's.
        carrier.ask(&Request::Caller { uid: 0, gid: 0, groups: Groups::new(&[]) }, |_| Some(()))?;
        let name = Name::new(FILE.as_bytes()).map_err(|error| wrong("a name", &error))?;
        let node = carrier.ask(&Request::Lookup { parent: NodeId::ROOT, name }, |reply| match reply {
            Reply::Entry(entry, _) => Some(entry.node),
            _ => None,
        })?;
        let open = Request::Open { node, flags: OpenFlags::READ | OpenFlags::WRITE };
        let open = carrier.ask(&open, |reply| match reply {
            Reply::Opened(opened) => Some(opened.open),
            _ => None,
        })?;
        carrier.file = File { node, open };
        Ok(carrier)
    }

    /// Asks, and takes out of the answer what is wanted.
    fn ask<T>(&self, request: &Request<'_>, pick: impl FnOnce(&Reply<'_>) -> Option<T>) -> Result<T> {
        let reply = self.send(request, Spans::none(), &[])?.wait().map_err(|error| wrong("ask", &error))?;
        let answer = Reply::decode(request.kind(), reply.kind, &reply.body, &reply.frame);
        let picked = match &answer {
            Ok(Ok(reply)) => pick(reply),
            _ => None,
        };
        picked.ok_or_else(|| unexpected(&answer))
    }

    #[inline]
    fn carry(&self, writes: bool, refers: bool) -> Result<()> {
        match (writes, refers) {
            (false, false) => self.read_inside(),
            (false, true) => self.read_referred(),
            (true, false) => self.write_inside(),
            (true, true) => self.write_referred(),
        }
    }

    #[inline]
    fn read_inside(&self) -> Result<()> {
        let place = Where::Inline { len_bytes: self.bytes as u32 };
        let call = self.send(&Request::Read { file: self.file, offset: 0, place }, Spans::none(), &[])?;
        let reply = call.wait().map_err(|error| wrong("read", &error))?;
        match Reply::decode(Kind::Read, reply.kind, &reply.body, &reply.frame) {
            Ok(Ok(Reply::Read(Returned::Inline(bytes), _))) => {
                whole(self.buffer.sink(0..self.bytes).write_at(0, bytes), self.bytes)
            }
            other => Err(unexpected(&other)),
        }
    }

    #[inline]
    fn read_referred(&self) -> Result<()> {
        let span = self.line.in_area().take(self.bytes as u64).ok_or_else(no_room)?;
        let place = Where::One(self.reference(self.line.in_address(&span).bits())?);
        let request = Request::Read { file: self.file, offset: 0, place };
        let reply =
            self.send(&request, Spans::from(span), &[])?.wait().map_err(|error| wrong("read", &error))?;
        match Reply::decode(Kind::Read, reply.kind, &reply.body, &reply.frame) {
            Ok(Ok(Reply::Read(Returned::Placed { len_bytes }, _))) => {
                whole(len_bytes as usize, self.bytes)?;
                let span = reply.spans.at(0).ok_or_else(no_room)?;
                let source = self.line.in_source(span).map_err(|error| wrong("read", &error))?;
                whole(source.copy_to_sink(&self.buffer.sink(0..self.bytes)), self.bytes)
            }
            other => Err(unexpected(&other)),
        }
    }

    #[inline]
    fn write_inside(&self) -> Result<()> {
        // As in the library, a buffer for the largest that goes inside: here as if this were the largest.
        match self.bytes {
            ..=512 => self.write_inside_of::<512>(),
            513..=1024 => self.write_inside_of::<1024>(),
            1025..=2048 => self.write_inside_of::<2048>(),
            _ => self.write_inside_of::<FRAME_BYTES>(),
        }
    }

    #[inline]
    fn write_inside_of<const MAX: usize>(&self) -> Result<()> {
        let mut bytes = [0; MAX];
        let len = self.buffer.source(0..self.bytes).read_at(0, &mut bytes);
        let data = Data::Follows { len_bytes: len as u32 };
        self.written(self.send(&self.write(data), Spans::none(), bytes.get(..len).unwrap_or_default())?)
    }

    #[inline]
    fn write_referred(&self) -> Result<()> {
        let span = self.line.out_area().take(self.bytes as u64).ok_or_else(no_room)?;
        let sink = self.line.out_sink(&span).map_err(|error| wrong("write", &error))?;
        self.buffer.source(0..self.bytes).copy_to_sink(&sink);
        let data = Data::One(self.reference(self.line.out_address(&span).bits())?);
        self.written(self.send(&self.write(data), Spans::from(span), &[])?)
    }

    fn write<'a>(&self, data: Data<'a>) -> Request<'a> {
        Request::Write { file: self.file, how: Write::default(), data }
    }

    #[inline]
    fn written(&self, call: Call) -> Result<()> {
        let reply = call.wait().map_err(|error| wrong("write", &error))?;
        match Reply::decode(Kind::Write, reply.kind, &reply.body, &reply.frame) {
            Ok(Ok(Reply::Written(written))) => whole(written.count, self.bytes),
            other => Err(unexpected(&other)),
        }
    }

    #[inline]
    fn reference(&self, address: u64) -> Result<Reference> {
        Reference::new(address, self.bytes as u32).map_err(|error| wrong("refer to memory", &error))
    }

    #[inline]
    fn send(&self, request: &Request<'_>, spans: Spans, tail: &[u8]) -> Result<Call> {
        let header = Header { caller: CallerId(0), ..Header::default() };
        let mut body = [0; BODY_BYTES];
        // What is asked here fits the body.
        let mut none = FrameBuf::new(&mut []);
        let kind = request.encode(&header, &mut body, &mut none).map_err(|error| wrong("encode", &error))?;
        Ok(self.line.call_with(kind.number(), body, spans, |frame| {
            if !tail.is_empty() {
                frame.put(tail);
            }
        }))
    }
}

fn whole(count: usize, wanted: usize) -> Result<()> {
    if count == wanted {
        return Ok(());
    }
    Err(Error::Wrong { what: "data over a link".to_owned(), answer: format!("{count} bytes of {wanted}") })
}

fn unexpected(answer: &dyn std::fmt::Debug) -> Error {
    Error::Wrong { what: "data over a link".to_owned(), answer: format!("{answer:?}") }
}

fn no_room() -> Error {
    Error::Wrong { what: "memory of a link".to_owned(), answer: "there is none left".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;
    use crate::report::Unit;
    use crate::table::ring::server;

    #[test]
    fn every_size_goes_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, file) = speed::lay_out(folder.path()).unwrap();
        let _listeners = server::listen(&shared, folder.path(), Meeting::Sockets).unwrap();
        for (writes, refers) in [(false, false), (false, true), (true, false), (true, true)] {
            for bytes in SIZES {
                let door = server::door(folder.path(), Meeting::Sockets, Mode::Adaptive);
                let mut carrier = Carrier::new(&door, bytes).unwrap();
                carrier.carry(writes, refers).unwrap();
                let content = carrier.buffer.as_slice().unwrap();
                assert!(writes || content.iter().all(|byte| *byte == b'x'), "{bytes} {writes} {refers}");
                let mut clock = Clock::new();
                Carried { door, writes, refers, bytes }.run(AT_ONCE, &mut clock).unwrap();
                assert_eq!(clock.count(), AT_ONCE, "{bytes} {writes} {refers}");
            }
        }
        // The buffers are empty, and were written to the file's beginning.
        let content = std::fs::read(file).unwrap();
        assert!(content[..FRAME_BYTES].iter().all(|byte| *byte == 0) && content[FRAME_BYTES] == b'x');
    }

    #[test]
    fn the_border_is_where_referring_is_cheaper_from_then_on() {
        let mut report = Report::new("ring-border", "x", String::new(), false);
        for (bytes, referred) in
            SIZES.into_iter().zip([90.0, 110.0, 120.0, 99.0, 90.0, 80.0, 70.0, 60.0, 50.0])
        {
            for (column, ns) in [(INSIDE, 100.0), (REFERRED, referred)] {
                let figure = Figure::single("read", &size(bytes), column, Unit::Nanoseconds, ns);
                let rounds = vec![ns; 3];
                report.figures.push(Figure { spread: Spread::of(&rounds).unwrap(), rounds, ..figure });
            }
        }
        judge(&mut report);
        assert_eq!(report.aims[0].found, "from 512 B on");
        assert_eq!(report.aims[1].found, "not up to 4096 B");
    }
}
