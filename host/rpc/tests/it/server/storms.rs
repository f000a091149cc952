//! Everything at once.

use std::collections::HashMap;
use std::io::Write;
use std::thread;

use tombolo_host_rpc::server::Options;

use crate::server::common::{Bed, ECHO, LATER, data_call, echoed, framed, numbered};

/// A small generator of numbers that are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// A call and its reply.
fn some_call(dice: &mut Dice, number: usize) -> (Vec<u8>, Vec<u8>) {
    let len = match dice.roll(10) {
        0 => 100_000 + dice.roll(500_000),
        1 | 2 => 8_000 + dice.roll(40_000),
        _ => 40 + dice.roll(300),
    };
    match dice.roll(4) {
        0 => {
            let call = numbered(LATER, number, len);
            // The second byte is how many milliseconds it takes.
            let call = [&call[..1], &[dice.roll(5) as u8], &call[2..]].concat();
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
fn many_clients_with_all_sorts_of_calls_get_all_their_replies() {
    let bed = Bed::new(Options { threads: 3, connection_calls_max: 20, ..Options::default() });
    thread::scope(|scope| {
        for seed in 0..12 {
            let mut client = bed.connect();
            let mut writer = client.0.try_clone().expect("clone");
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let calls: Vec<_> = (0..250).map(|number| some_call(&mut dice, number)).collect();
                let mut missing: HashMap<&[u8], usize> = HashMap::new();
                calls.iter().for_each(|(_, reply)| *missing.entry(reply).or_default() += 1);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        for (call, _) in &calls {
                            let fragment = if dice.roll(5) == 0 { 1 + dice.roll(5000) } else { call.len() };
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
    bed.until("all buffers are back", |counts| counts.lent_bytes == 0);
    bed.server.stop();
}
