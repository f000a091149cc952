//! Servers that let callers wait.

use std::sync::{Arc, Mutex};

use tombolo_host_links::server::{Request, Responder, Service, Session};
use tombolo_vrpc_tests::made_up::{Between, MadeUp, said, terms};
use tombolo_wire_vrpc::{Body, Kind, Reply};

/// A server that describes the session and does not answer other requests until told to.
#[derive(Default)]
pub struct Mute {
    held: Arc<Mutex<Vec<Responder>>>,
}

impl Mute {
    pub fn service(&self) -> Arc<dyn Service> {
        let held = self.held.clone();
        MadeUp::serving(move |kind, responder| match kind {
            Kind::Profile => {
                let (number, body, frame) = said(kind, &Reply::Session(terms()));
                responder.send(number, body, &frame);
            }
            _ => held.lock().expect("no panic").push(responder),
        })
    }

    pub fn was_asked(&self) -> bool {
        !self.held.lock().expect("no panic").is_empty()
    }

    /// Ends the links of clients whose requests are pending.
    pub fn let_go(&self) {
        self.held.lock().expect("no panic").clear();
    }
}

/// A server that lets requests wait, from its second OPEN on.
#[derive(Default)]
pub struct Halting(Arc<Mutex<Halted>>);

#[derive(Default)]
struct Halted {
    opens: u32,
    goes_on: bool,
    requests: Vec<Waiting>,
}

struct Waiting {
    session: Arc<dyn Session>,
    kind: u32,
    body: Body,
    frame: Vec<u8>,
    responder: Responder,
}

impl Halting {
    pub fn over(&self, inner: Arc<dyn Service>) -> Arc<dyn Service> {
        let halted = self.0.clone();
        let serve = move |session: &Arc<dyn Session>, request: Request<'_>, responder: Responder| {
            let Request { kind, body, frame } = request;
            let mut halted = halted.lock().expect("no panic");
            halted.opens += u32::from(Kind::from_number(kind).expect("the client is honest") == Kind::Open);
            if halted.opens >= 2 && !halted.goes_on {
                let (session, frame) = (session.clone(), frame.to_vec());
                return halted.requests.push(Waiting { session, kind, body, frame, responder });
            }
            drop(halted);
            session.serve(request, responder);
        };
        Arc::new(Between(inner, Arc::new(serve)))
    }

    /// Serves pending and future requests.
    pub fn go_on(&self) {
        let mut halted = self.0.lock().expect("no panic");
        halted.goes_on = true;
        let requests = std::mem::take(&mut halted.requests);
        drop(halted);
        for Waiting { session, kind, body, frame, responder } in requests {
            session.serve(Request { kind, body, frame: &frame }, responder);
        }
    }

    pub fn has_halted(&self) -> bool {
        !self.0.lock().expect("no panic").requests.is_empty()
    }
}
