//! The caller's view of a link.

use std::io;
use std::sync::Arc;
use std::thread;

use thiserror::Error;
use tombolo_mem::{OutOfBounds, Sink, Source};
use tombolo_shm::address::{AddressError, BaseTable, Domain, GlobalAddress};
use tombolo_shm::area::{Area, Span};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Features, Role};
use tombolo_shm::window::WindowReader;

use super::call::{Call, Outcome};
use super::core::Core;
use super::counters::Counts;
use super::message::{FrameWriter, Spans};
use super::receiver;
use crate::end::EndReason;
use crate::forwarding::{RegionForwarder, RemoteBuffer};

/// A link, as seen by callers; clones share it. Usable from any thread.
///
/// Dropping the last clone ends the link, and fails outstanding calls.
#[derive(Clone)]
pub struct Line(Arc<Owner>);

/// A guard that ends the link when the last clone is dropped.
struct Owner(Arc<Core>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end(EndReason::Stopped);
    }
}

/// Reason why a line was not started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The ends are those of the server.
    #[error("a server's ends cannot be used for calls")]
    Role,
    /// The layout does not fit the memory.
    #[error("the layout does not fit the memory")]
    Layout(#[from] OutOfBounds),
    /// The receiver thread could not be created.
    #[error("no thread for the link")]
    Thread(#[from] io::Error),
}

impl Line {
    /// Starts to use an unused link. `mode` selects how callers wait, `label` names the link in messages.
    pub fn start(ends: &Ends, label: impl Into<Arc<str>>, mode: Mode) -> Result<Self, StartError> {
        if ends.role != Role::Client {
            return Err(StartError::Role);
        }
        let core = Arc::new(Core::new(ends, label.into(), mode)?);
        let receiver = core.clone();
        thread::Builder::new().name("link-receiver".into()).spawn(move || receiver::run(&receiver))?;
        Ok(Self(Arc::new(Owner(core))))
    }

    /// Sends a request at once, or as soon as an id is free: queued calls are sent in order. `frame` encodes
    /// the arguments of variable length; it must not call on this line.
    ///
    /// Sending allocates nothing, unless all ids are in use.
    #[inline]
    pub fn call(&self, kind: u32, body: [u8; 48], frame: impl FnOnce(&mut FrameWriter<'_>)) -> Call {
        self.call_with(kind, body, Spans::none(), frame)
    }

    /// Sends a request that refers to bulk memory, as [`call`](Self::call) does. The spans are returned with
    /// the answer; if the call is dropped before its answer, they stay in use until the server has answered.
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

    /// Sends a request as [`call_with`](Self::call_with) does; returns `None`, without having sent it, if no
    /// id is free, the arguments are too long or the link has ended.
    pub fn try_call_with(
        &self,
        kind: u32,
        body: [u8; 48],
        spans: Spans,
        frame: impl FnOnce(&mut FrameWriter<'_>),
    ) -> Option<Call> {
        Call::try_new(self.core(), kind, body, spans, frame)
    }

    /// Takes all available answers out of the ring, even after the end of the link. Before the end, does
    /// nothing while another thread is receiving. Wakes tasks as [`Call::now`] does, under the same
    /// conditions.
    pub fn receive(&self) {
        self.core().receive();
    }

    /// Returns the extensions negotiated for the link.
    #[must_use]
    pub fn features(&self) -> Features {
        self.core().features
    }

    /// Returns the number of requests that may be outstanding at a time.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.core().layout.slots()
    }

    /// Returns `true` if fewer than half of the slots are in use. Only then should a caller send requests
    /// whose answers do not wake it: such an answer occupies an id until a thread happens to take it out.
    #[must_use]
    pub fn is_half_free(&self) -> bool {
        self.core().counters.in_flight() * 2 < u64::from(self.slots())
    }

    /// Combines [`call_with`](Self::call_with) and [`Call::now`], under the conditions of the latter. Returns
    /// the answer, or the pending call. Cheaper than both in sequence if the answer is immediate.
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

    /// Returns the allocator of the bulk memory that this side writes: data for the server.
    #[must_use]
    pub fn out_area(&self) -> &Area {
        &self.core().areas[0]
    }

    /// Returns the allocator of the bulk memory that the server writes: data for this side.
    #[must_use]
    pub fn in_area(&self) -> &Area {
        &self.core().areas[1]
    }

    /// Returns the address of a span of [`out_area`](Self::out_area) for use in a request.
    #[must_use]
    pub fn out_address(&self, span: &Span) -> GlobalAddress {
        address(Domain::CLIENT, span)
    }

    /// Returns the address of a span of [`in_area`](Self::in_area) for use in a request.
    #[must_use]
    pub fn in_address(&self, span: &Span) -> GlobalAddress {
        address(Domain::SERVER, span)
    }

    /// Returns the memory of a span of [`out_area`](Self::out_area), to be filled before the call. The memory
    /// stays mapped as long as the sink lives.
    pub fn out_sink(&self, span: &Span) -> Result<Sink, AddressError> {
        self.core().bases.sink(self.out_address(span), span.len())
    }

    /// Returns the memory of a span of [`in_area`](Self::in_area), to be read after the answer. The server
    /// may change the memory while it is read. The memory stays mapped as long as the source lives.
    pub fn in_source(&self, span: &Span) -> Result<Source, AddressError> {
        self.core().bases.source(self.in_address(span), span.len())
    }

    /// Returns addresses at which the server can read the bytes of `source`, which are in another domain's
    /// memory, without a copy. Returns `None` until the server has mapped the region; the first call forwards
    /// it, if its owner and the server permit that.
    #[must_use]
    pub fn remote_buffer(&self, source: &Source) -> Option<RemoteBuffer> {
        self.core().forwarder.get()?.lend(source)
    }

    /// Sets the forwarder, for a server that accepts forwarded regions.
    pub(crate) fn set_forwarder(&self, forwarder: RegionForwarder) {
        let _ = self.core().forwarder.set(Arc::new(forwarder));
        // A line that ends from now on notifies the forwarder itself.
        if let (Some(end), Some(forwarder)) = (self.end(), self.forwarder()) {
            forwarder.ended(&end);
        }
    }

    pub(crate) fn forwarder(&self) -> Option<&Arc<RegionForwarder>> {
        self.core().forwarder.get()
    }

    /// Returns the server's window, if the server sent one or maintains a mirror of it.
    #[inline]
    #[must_use]
    pub fn window(&self) -> Option<&WindowReader> {
        self.core().window.get()
    }

    /// Sets the server's window. Later calls have no effect.
    pub fn set_window(&self, window: WindowReader) {
        let _ = self.core().window.set(window);
    }

    /// Returns the table that resolves this link's addresses.
    #[must_use]
    pub fn bases(&self) -> &BaseTable {
        &self.core().bases
    }

    /// Returns `true` if the link has ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.core().outcome.is_over()
    }

    /// Returns the reason for the end, or `None` while the link exists.
    #[must_use]
    pub fn end(&self) -> Option<EndReason> {
        self.core().outcome.why()
    }

    /// Calls `listener` when the link ends, whichever side ended it, or at once if it has ended. The listener
    /// runs on the thread that ends the link, so it must not block, end a link, or drop an object whose
    /// destructor may do so.
    pub fn on_end(&self, listener: impl FnOnce() + Send + 'static) {
        self.core().outcome.on_end(Box::new(listener));
    }

    /// Ends the link, unless it has ended before. Called by the owner of the control socket, and after a
    /// malformed reply. All unanswered calls fail; their wakers are woken on this thread. The memory stays
    /// mapped as long as there are clones, calls, sinks or sources.
    pub fn cut(&self, why: EndReason) {
        self.core().end(why);
    }

    /// Returns the line's name for messages.
    #[must_use]
    pub fn label(&self) -> &Arc<str> {
        &self.core().label
    }

    /// Returns a snapshot of the line's counters.
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
    // No region is so long that an offset needs more than 48 bits.
    GlobalAddress::new(domain, span.offset()).unwrap_or(GlobalAddress::from_bits(u64::MAX))
}
