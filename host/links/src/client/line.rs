//! One link, as callers see it.

use std::io;
use std::sync::Arc;
use std::thread;

use thiserror::Error;
use tombolo_mem::{OutOfBounds, Sink, Source};
use tombolo_shm::address::{AddressError, BaseTable, Domain, GlobalAddress};
use tombolo_shm::area::{Area, Span};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Role};
use tombolo_shm::window::WindowReader;

use super::call::{Call, Outcome};
use super::core::Core;
use super::counters::Counts;
use super::message::{FrameWriter, Spans};
use super::receiver;
use crate::end::End;
use crate::forwarding::{RegionForwarder, RemoteBuffer};

/// One link, as callers see it; a clone is the same link. Any thread may call.
///
/// The link ends when the last clone is dropped. Calls that are still waited for fail then.
#[derive(Clone)]
pub struct Line(Arc<Owner>);

/// Ends the link when the last clone is dropped.
struct Owner(Arc<Core>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end(End::Stopped);
    }
}

/// Why a link cannot be used.
#[derive(Debug, Error)]
pub enum StartError {
    /// These are the server's ends.
    #[error("the ends of a server cannot call")]
    Role,
    /// The layout does not fit the memory.
    #[error("the layout does not fit the memory")]
    Layout(#[from] OutOfBounds),
    /// There is no thread that could receive.
    #[error("no thread for the link")]
    Thread(#[from] io::Error),
}

impl Line {
    /// Begins to use a link, over which nothing was sent yet. `mode` says how callers wait, `label` what to
    /// call the link in messages.
    pub fn start(ends: &Ends, label: impl Into<Arc<str>>, mode: Mode) -> Result<Self, StartError> {
        if ends.role != Role::Client {
            return Err(StartError::Role);
        }
        let core = Arc::new(Core::new(ends, label.into(), mode)?);
        let receiver = core.clone();
        thread::Builder::new().name("link-receiver".into()).spawn(move || receiver::run(&receiver))?;
        Ok(Self(Arc::new(Owner(core))))
    }

    /// Sends a request at once, or as soon as an id is free: calls that wait for one are sent in order.
    /// `frame` encodes the arguments of variable length; it must not call on this line.
    ///
    /// Allocates nothing, unless all ids are out.
    #[inline]
    pub fn call(&self, kind: u32, body: [u8; 48], frame: impl FnOnce(&mut FrameWriter<'_>)) -> Call {
        self.call_with(kind, body, Spans::none(), frame)
    }

    /// As [`call`](Self::call), of a request that refers to bulk memory. It comes back with the answer; if
    /// the call is dropped before, it stays in use until the server has answered.
    #[inline]
    pub fn call_with(
        &self,
        kind: u32,
        body: [u8; 48],
        spans: Spans,
        frame: impl FnOnce(&mut FrameWriter<'_>),
    ) -> Call {
        Call::new(self.core().clone(), kind, body, spans, frame)
    }

    /// As [`call_with`](Self::call_with) and [`Call::now`], which see: the answer, or else the call that
    /// waits for it. Cheaper than both one after the other if the answer comes at once.
    #[inline]
    pub fn ask(
        &self,
        kind: u32,
        body: [u8; 48],
        spans: Spans,
        frame: impl FnOnce(&mut FrameWriter<'_>),
    ) -> Result<Outcome, Call> {
        Call::ask(self.core(), kind, body, spans, frame)
    }

    /// Bulk memory that this side writes: data on their way to the server.
    #[must_use]
    pub fn out_area(&self) -> &Area {
        &self.core().areas[0]
    }

    /// Bulk memory that the server writes: data on their way from it.
    #[must_use]
    pub fn in_area(&self) -> &Area {
        &self.core().areas[1]
    }

    /// What a span of [`out_area`](Self::out_area) is called in a request.
    #[must_use]
    pub fn out_address(&self, span: &Span) -> GlobalAddress {
        address(Domain::CLIENT, span)
    }

    /// What a span of [`in_area`](Self::in_area) is called in a request.
    #[must_use]
    pub fn in_address(&self, span: &Span) -> GlobalAddress {
        address(Domain::SERVER, span)
    }

    /// The memory of a span of [`out_area`](Self::out_area), to be filled before the call. It stays mapped as
    /// long as the sink lives.
    pub fn out_sink(&self, span: &Span) -> Result<Sink, AddressError> {
        self.core().bases.sink(self.out_address(span), span.len())
    }

    /// The memory of a span of [`in_area`](Self::in_area), to be read after the answer. The server may change
    /// it while it is read. It stays mapped as long as the source lives.
    pub fn in_source(&self, span: &Span) -> Result<Source, AddressError> {
        self.core().bases.source(self.in_address(span), span.len())
    }

    /// How the server names these bytes, if they lie in the memory of another domain that it has mapped too:
    /// then they need not be copied. The first time the region is forwarded, if its owner and the server
    /// allow it, and there is no name yet.
    #[must_use]
    pub fn remote_buffer(&self, source: &Source) -> Option<RemoteBuffer> {
        self.core().forwarder.get()?.lend(source)
    }

    /// The server takes forwarded regions.
    pub(crate) fn may_forward(&self, forwarder: RegionForwarder) {
        let _ = self.core().forwarder.set(Arc::new(forwarder));
        // If the line ends after this, its end finds the forwarder.
        if let (Some(end), Some(forwarder)) = (self.end(), self.forwarder()) {
            forwarder.ended(&end);
        }
    }

    pub(crate) fn forwarder(&self) -> Option<&Arc<RegionForwarder>> {
        self.core().forwarder.get()
    }

    /// The server's window, if it has one.
    #[inline]
    #[must_use]
    pub fn window(&self) -> Option<&WindowReader> {
        self.core().window.get()
    }

    /// The server has this window; only the first counts.
    pub fn has_window(&self, window: WindowReader) {
        let _ = self.core().window.set(window);
    }

    /// What addresses mean on this link.
    #[must_use]
    pub fn bases(&self) -> &BaseTable {
        &self.core().bases
    }

    /// Whether the link has ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.core().outcome.is_over()
    }

    /// Why the link has ended; none while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.core().outcome.why()
    }

    /// Has `listener` called when the link ends, whichever side ended it; at once if it has. It is called on
    /// the thread that ends the link, so it must not block, end a link, or drop what may.
    pub fn on_end(&self, listener: impl FnOnce() + Send + 'static) {
        self.core().outcome.on_end(Box::new(listener));
    }

    /// Ends the link, if it has not ended before: for the owner of its control socket, and after a malformed
    /// reply. All calls that are not answered fail; their wakers are woken on this thread. The memory stays
    /// mapped as long as there are clones, calls, sinks or sources.
    pub fn cut(&self, why: End) {
        self.core().end(why);
    }

    /// What it is called in messages.
    #[must_use]
    pub fn label(&self) -> &Arc<str> {
        &self.core().label
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core().counts()
    }

    #[inline]
    fn core(&self) -> &Arc<Core> {
        &self.0.0
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line({})", self.label())
    }
}

fn address(domain: Domain, span: &Span) -> GlobalAddress {
    // No region is that long that an offset in it needs more than 48 bits.
    GlobalAddress::new(domain, span.offset()).unwrap_or(GlobalAddress::from_bits(u64::MAX))
}
