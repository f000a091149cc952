//! Requests directly on a link, without the library: a null request, and many pipelined attribute requests.

use std::collections::VecDeque;

use tombolo_core::fs::NodeId;
use tombolo_host_links::client::{Call, Line};
use tombolo_wire_vrpc::{BODY_BYTES, CallerId, FrameBuf, Groups, Header, Kind, Reply, Request};

use super::endpoint::Endpoint;
use super::{AT_ONCE, timed_by, wrong};
use crate::error::{Error, OrWrong, Result};
use crate::measure::{Clock, Work};

pub fn alone(endpoint: Endpoint) -> Work<'static> {
    Work::new(move |count, clock| {
        let (line, _keep) = endpoint.link().map_err(|error| wrong("a link", error.as_ref()))?;
        timed_by(AT_ONCE, count, clock, || check(Kind::Null, send(&line, &Request::Null)?))
    })
}

/// Keeps `depth` requests in flight, over links of the endpoint.
pub fn outstanding(endpoint: Endpoint, depth: usize) -> Work<'static> {
    let run = move |count: u64, clock: &mut Clock| {
        let (line, _keep) = endpoint.link().map_err(|error| wrong("a link", error.as_ref()))?;
        // The superuser.
        check(Kind::Caller, send(&line, &Request::Caller { uid: 0, gid: 0, groups: Groups::new(&[]) })?)?;
        let getattr = Request::Getattr { node: NodeId::ROOT, open: None };
        let calls: Result<VecDeque<Call>> = (0..depth).map(|_| send(&line, &getattr)).collect();
        let mut calls = calls?;
        let batch = depth as u64;
        clock.start();
        for _ in 0..count.div_ceil(batch).max(1) {
            for _ in 0..batch {
                if let Some(first) = calls.pop_front() {
                    check(Kind::Getattr, first)?;
                }
                calls.push_back(send(&line, &getattr)?);
            }
            clock.lap_of(batch);
        }
        calls.into_iter().try_for_each(|call| check(Kind::Getattr, call))
    };
    Work::new(run).per_second(true)
}

#[inline]
fn send(line: &Line, request: &Request<'_>) -> Result<Call> {
    let header = Header { caller: CallerId(0), ..Header::default() };
    let mut body = [0; BODY_BYTES];
    // These requests fit in the body.
    let mut none = FrameBuf::new(&mut []);
    let kind = request.encode(&header, &mut body, &mut none).or_wrong("encode")?;
    Ok(line.call(kind.number(), body, |_| {}))
}

/// Waits for the reply, and checks it.
#[inline]
fn check(kind: Kind, call: Call) -> Result<()> {
    let reply = call.wait().or_wrong("a call")?;
    let outcome = Reply::decode(kind, reply.kind, &reply.body, &reply.frame);
    match outcome.or_wrong("decode")? {
        Ok(_) => Ok(()),
        Err(status) => Err(Error::Wrong { what: format!("{kind:?}"), answer: format!("{status:?}") }),
    }
}
