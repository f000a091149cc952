//! A request that may have to be sent again.

use tombolo_core::{Ctx, Error, Result};
use tombolo_host_links::client::Spans;
use tombolo_wire_vrpc::{Body, Header, Kind, Request};

use std::sync::Arc;

use crate::frame::encoded;
use crate::link::Link;
use crate::recovery::restore;
use crate::request::{NoAnswer, Outcome, OutgoingRequest, Sent};

/// An encoded request, in the session's own ids.
pub(crate) struct Owned {
    kind: Kind,
    sequence: u64,
    body: Body,
    frame: Vec<u8>,
}

impl Owned {
    /// Copies the request and the bytes that follow its frame.
    pub(crate) fn new(request: &Request<'_>, tail: &[u8], sequence: u64, cx: &Ctx) -> Result<Self> {
        let header = Header { sequence, want: cx.want, ..Header::default() };
        let (body, frame) = encoded(request, &header)?;
        Ok(Self { kind: request.kind(), sequence, body, frame: frame.with_tail(tail) })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Sends the request over a link, after restoring the nodes and openings that it refers to.
    pub(crate) async fn send(&self, link: &Arc<Link>, cx: &Ctx, spans: Spans) -> Outcome {
        let (_, request) = Request::decode(self.kind.number(), &self.body, &self.frame)
            .map_err(|error| NoAnswer::Failed(Error::io(error)))?;
        let request = loop {
            match link.translated(&request) {
                Ok(request) => break request,
                Err(unknown) => restore(link, cx, unknown).await?,
            }
        };
        match link.send(cx, self.sequence, OutgoingRequest { request, tail: &[], spans }) {
            Sent::Ended(outcome) => outcome,
            Sent::Pending(pending) => pending.outcome(&cx.interrupt).await,
        }
    }
}
