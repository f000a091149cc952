//! Random load.

use std::collections::HashMap;
use std::io::Write;
use std::thread;

use fastrand::Rng;
use tombolo_host_rpc::server::Options;

use crate::server::common::{ECHO, LATER, TestHost, data_call, echoed, framed, numbered};

/// Returns a call and its reply.
fn some_call(dice: &mut Rng, number: usize) -> (Vec<u8>, Vec<u8>) {
    let len = match dice.usize(..10) {
        0 => 100_000 + dice.usize(..500_000),
        1 | 2 => 8_000 + dice.usize(..40_000),
        _ => 40 + dice.usize(..300),
    };
    match dice.usize(..4) {
        0 => {
            let call = numbered(LATER, number, len);
            // The second byte is its delay in milliseconds.
            let call = [&call[..1], &[dice.usize(..5) as u8], &call[2..]].concat();
            let reply = echoed(&call);
            (call, reply)
        }
        1 => {
            let call = data_call(number as u8, len);
            let mut reply = [&call[..], &vec![number as u8; len]].concat();
            reply.resize(8 + len.next_multiple_of(4), 0);
            (call, reply)
        }
        _ => {
            let call = numbered(ECHO, number, len);
            let reply = echoed(&call);
            (call, reply)
        }
    }
}

#[test]
fn mixed_load_gets_all_replies() {
    let host = TestHost::new(Options { threads: 3, connection_calls_max: 20, ..Options::default() });
    thread::scope(|scope| {
        for seed in 0..12 {
            let mut client = host.connect();
            let mut writer = client.0.try_clone().expect("clone");
            scope.spawn(move || {
                let mut dice = Rng::with_seed(seed);
                let calls: Vec<_> = (0..250).map(|number| some_call(&mut dice, number)).collect();
                let mut missing: HashMap<&[u8], usize> = HashMap::new();
                calls.iter().for_each(|(_, reply)| *missing.entry(reply).or_default() += 1);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        for (call, _) in &calls {
                            let fragment =
                                if dice.usize(..5) == 0 { 1 + dice.usize(..5000) } else { call.len() };
                            writer.write_all(&framed(call, fragment)).expect("send");
                        }
                    });
                    for _ in 0..calls.len() {
                        let reply = client.receive();
                        let count = missing.get_mut(&reply[..]).expect("a reply that was asked for");
                        *count -= 1;
                        if *count == 0 {
                            missing.remove(&reply[..]);
                        }
                    }
                });
                assert!(missing.is_empty());
            });
        }
    });
    host.until("all buffers are back", |counts| counts.lent_bytes == 0);
    host.server.stop();
}
