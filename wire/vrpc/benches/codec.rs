//! What encoding and decoding take: `cargo bench -p tombolo-wire-vrpc`. Prints the tenth percentile of many short turns, in which all cases
//! alternate, in nanoseconds per message.
#![expect(clippy::print_stdout, reason = "that is what it is for")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Instant;

use common::{encode_outcome, encode_request, samples};
use tombolo_core::fs::Want;
use tombolo_wire_vrpc::*;

const TURNS: usize = 400;
const MESSAGES: u32 = 2_000;

struct Case {
    name: String,
    run: Box<dyn FnMut()>,
    turns_ns: Vec<f64>,
}

fn case(name: String, run: impl FnMut() + 'static) -> Case {
    Case { name, run: Box::new(run), turns_ns: Vec::new() }
}

fn request_cases(header: Header, request: Request<'static>) -> [Case; 2] {
    let message = encode_request(&header, &request).expect("a sample");
    let frame_bytes = message.frame.len();
    let name = format!("request {:?}, frame {frame_bytes}", request.kind());
    let (mut body, mut memory) = ([0; BODY_BYTES], [0; FRAME_BYTES]);
    [
        case(format!("encode {name}"), move || {
            let mut frame = FrameBuf::new(&mut memory);
            let kind = black_box(&request).encode(&header, &mut body, &mut frame);
            let _ = black_box((kind, &body, frame.as_bytes()));
        }),
        case(format!("decode {name}"), move || {
            let message = black_box(&message);
            let _ = black_box(&Request::decode(message.kind, &message.body, &message.frame));
        }),
    ]
}

fn reply_cases(kind: Kind, outcome: Outcome<'static>) -> [Case; 2] {
    let message = encode_outcome(kind, &outcome).expect("a sample");
    let name = format!("answer to {kind:?}, frame {}", message.frame.len());
    let (mut body, mut memory) = ([0; BODY_BYTES], [0; FRAME_BYTES]);
    [
        case(format!("encode {name}"), move || {
            let mut frame = FrameBuf::new(&mut memory);
            if let Ok(reply) = black_box(&outcome) {
                let _ = black_box(reply.encode(kind, &mut body, &mut frame));
            }
            black_box((&body, frame.as_bytes()));
        }),
        case(format!("decode {name}"), move || {
            let message = black_box(&message);
            let _ = black_box(&Reply::decode(kind, message.kind, &message.body, &message.frame));
        }),
    ]
}

fn main() {
    let hot = [Kind::Null, Kind::Getattr, Kind::Lookup, Kind::Read, Kind::Write, Kind::Open, Kind::Readdir];
    let requests = samples::requests();
    let requests = requests.into_iter().filter(|(_, request)| hot.contains(&request.kind()));
    let replies = samples::replies();
    let replies = replies.into_iter().filter(|(kind, outcome)| hot.contains(kind) && outcome.is_ok());
    let mut cases: Vec<Case> = requests
        .flat_map(|(header, request)| request_cases(Header { want: Want::empty(), ..header }, request))
        .chain(replies.flat_map(|(kind, outcome)| reply_cases(kind, outcome)))
        .collect();
    for _ in 0..TURNS {
        for case in &mut cases {
            let begun = Instant::now();
            for _ in 0..MESSAGES {
                (case.run)();
            }
            case.turns_ns.push(begun.elapsed().as_nanos() as f64 / f64::from(MESSAGES));
        }
    }
    for case in &mut cases {
        case.turns_ns.sort_by(f64::total_cmp);
        println!("{:6.1} ns  {}", case.turns_ns[TURNS / 10], case.name);
    }
}
