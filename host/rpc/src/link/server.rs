//! Server side: a session for each link, whose calls are handed to a transport-independent service.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tombolo_mem::Source;

use super::message::{CallMessage, Part};
use super::reply::respond;
use crate::server::{Exchange, LinkOrigin, Outcome, Peer, Service};
use tombolo_host_links::ProtocolError;
use tombolo_host_links::server::{
    IdentityPolicy, Peer as LinkPeer, Refusal, Request, Responder, Service as LinkService, Session,
};
use tombolo_host_runtime::buffer_pool::{BUFFER_MAX_BYTES, BufferLimits, BufferPool, Buffers};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_runtime::task;

/// Maximum length of a call, in bytes: the largest buffer available to a service.
const CALL_BYTES_MAX: usize = BUFFER_MAX_BYTES;

/// Maximum number of exchanges that a link retains for reuse.
const SPARE_MAX: usize = 32;

/// An ONC RPC service over links, each of which is bound to one export.
pub struct RpcLinks<S> {
    service: Arc<S>,
    exports: Vec<String>,
    pool: Arc<BufferPool>,
}

impl<S: Service> RpcLinks<S> {
    /// Returns a service of links that offers these exports by name; `service` confines the callers of a link
    /// to that link's export ([`LinkOrigin::export`]). `limits` apply to buffers for reply data: the total to
    /// all links together, the share to each link.
    pub fn new(service: Arc<S>, exports: Vec<String>, limits: BufferLimits) -> Self {
        Self { service, exports, pool: BufferPool::new(limits) }
    }

    /// Returns the export of that name, or `None` if there is none; an empty name selects the only export.
    fn export(&self, name: &str) -> Option<&str> {
        match (name, &*self.exports) {
            ("", [only]) => Some(only),
            _ => self.exports.iter().find(|export| *export == name).map(String::as_str),
        }
    }
}

impl<S: Service> LinkService for RpcLinks<S> {
    fn open(&self, peer: &LinkPeer) -> Result<Arc<dyn Session>, Refusal> {
        let export = self.export(&peer.export).ok_or(Refusal::NoSuchExport)?;
        let caller = Peer::of_link(LinkOrigin {
            label: peer.label.clone(),
            export: export.into(),
            client: peer.client,
            user: peer.credentials.as_ref().map(|standing| standing.process.uid),
            identity_policy: IdentityPolicy::of(peer),
        });
        let exchanges = Arc::new(ExchangePool {
            buffers: Buffers::of(self.pool.account()),
            pool: self.pool.clone(),
            exchanges: FreeList::new(SPARE_MAX),
        });
        Ok(session(self.service.clone(), caller, exchanges))
    }
}

/// Exchanges and memory shared by the calls of a link.
struct ExchangePool {
    buffers: Buffers,
    pool: Arc<BufferPool>,
    exchanges: FreeList<Box<Exchange>>,
}

impl ExchangePool {
    fn take(&self) -> Box<Exchange> {
        self.exchanges.take().unwrap_or_else(|| Box::new(Exchange::new(self.buffers.clone())))
    }

    fn put(&self, mut exchange: Box<Exchange>) {
        exchange.clear();
        self.exchanges.give_back(exchange);
    }
}

/// Memory of a call's future, pinned before the first poll and reused from call to call.
type Slot<F> = Pin<Box<Option<F>>>;

/// Creates a session. The function is generic, because the type of a service's futures cannot be named.
fn session<S: Service>(service: Arc<S>, caller: Arc<Peer>, exchanges: Arc<ExchangePool>) -> Arc<dyn Session> {
    let begin = move |exchange| S::serve(service.clone(), caller.clone(), exchange);
    Arc::new(RpcSession { begin, exchanges, slots: FreeList::new(1) })
}

struct RpcSession<B, F> {
    begin: B,
    exchanges: Arc<ExchangePool>,
    slots: FreeList<Slot<F>>,
}

impl<B, F> Session for RpcSession<B, F>
where
    B: Fn(Box<Exchange>) -> F + Send + Sync,
    F: Future<Output = (Box<Exchange>, Outcome)> + Send + 'static,
{
    fn serve(&self, request: Request<'_>, responder: Responder) {
        let mut exchange = self.exchanges.take();
        let reply_buffer = match take_in(&mut exchange, &request, &responder) {
            Ok(reply_buffer) => reply_buffer,
            Err(violation) => return responder.cut(violation),
        };
        let mut slot = self.slots.take().unwrap_or_else(|| Box::pin(None));
        slot.as_mut().set(Some((self.begin)(exchange)));
        match poll(&mut slot, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready((mut exchange, outcome)) => {
                respond(responder, &mut exchange, outcome, reply_buffer);
                self.exchanges.put(exchange);
                self.slots.give_back(slot);
            }
            Poll::Pending => spawn_pending(slot, self.exchanges.clone(), responder, reply_buffer),
        }
    }

    fn ended(&self) {
        // A server of links has no timer, so unused memory is freed when a link ends.
        self.exchanges.pool.trim();
    }
}

/// Polls the pending call with a real waker. A panic drops the responder, which ends the link.
fn spawn_pending<F>(
    mut slot: Slot<F>,
    exchanges: Arc<ExchangePool>,
    responder: Responder,
    reply_buffer: Option<Part>,
) where
    F: Future<Output = (Box<Exchange>, Outcome)> + Send + 'static,
{
    task::spawn(async move {
        let (mut exchange, outcome) = poll_fn(|context| poll(&mut slot, context)).await;
        respond(responder, &mut exchange, outcome, reply_buffer);
        exchanges.put(exchange);
    });
}

/// Polls the future in a slot. A slot is never polled while it is empty; it would stay pending.
fn poll<F: Future>(slot: &mut Slot<F>, context: &mut Context<'_>) -> Poll<F::Output> {
    let Some(future) = slot.as_mut().as_pin_mut() else { return Poll::Pending };
    let polled = future.poll(context);
    if polled.is_ready() {
        slot.as_mut().set(None);
    }
    polled
}

/// Stores a request in the exchange, and returns its reply buffer. The head is a private copy; the remainder
/// stays in the client's memory.
fn take_in(
    exchange: &mut Exchange,
    request: &Request<'_>,
    responder: &Responder,
) -> Result<Option<Part>, ProtocolError> {
    let malformed = |why: &dyn std::fmt::Display| ProtocolError::Malformed(why.to_string().into());
    let call = CallMessage::decode(request.kind, &request.body).map_err(|error| malformed(&error))?;
    let data = match call.data {
        Some(part) => responder.source(part.address, u64::from(part.len_bytes))?,
        None => Source::new(),
    };
    let len_bytes = request.frame.len().saturating_add(data.len());
    if len_bytes > CALL_BYTES_MAX {
        return Err(malformed(&format_args!("call of {len_bytes} bytes is too long")));
    }
    // An invalid reply buffer is a violation whether or not it is used.
    if let Some(reply_buffer) = call.reply_buffer {
        responder.sink(reply_buffer.address, u64::from(reply_buffer.len_bytes))?;
    }
    let mut record = responder.frame(request.frame.len());
    record.append(data.clone());
    exchange.receive(request.frame, &data, record);
    Ok(call.reply_buffer)
}
