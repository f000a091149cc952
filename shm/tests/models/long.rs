//! Many random interleavings of runs that go round the rings.

use shuttle::rand::{Rng, thread_rng};

use crate::world::{Shuttle, World, sides};

const RUNS: usize = 300;

/// Runs a server that answers in any order, and a client with as many outstanding requests as there are
/// slots: each request is answered once, and both sides sleep whenever nothing has arrived.
fn out_of_order(slots: usize, requests: u32) {
    let [mut client, mut server] = sides::<Shuttle>(slots);
    let end = Shuttle::spawn(move || {
        let mut held = Vec::new();
        for _ in 0..requests {
            held.push(server.receive());
            // At the limit the client waits for an answer.
            while held.len() == slots || !held.is_empty() && thread_rng().gen_bool(0.5) {
                let any = thread_rng().gen_range(0..held.len());
                server.send(held.swap_remove(any));
            }
        }
        held.into_iter().for_each(|id| server.send(id));
    });
    let mut answered = vec![false; requests as usize];
    let mut next = 0;
    let mut under_way = 0;
    while next < requests || under_way > 0 {
        if next < requests && under_way < slots && (under_way == 0 || thread_rng().gen_bool(0.6)) {
            client.send(next);
            next += 1;
            under_way += 1;
        } else if under_way == slots || next == requests || client.consumer.is_ready() {
            let id = client.receive();
            assert!(!std::mem::replace(&mut answered[id as usize], true), "{id} was answered twice");
            under_way -= 1;
        } else {
            Shuttle::yield_now();
        }
    }
    assert!(answered.iter().all(|answered| *answered));
    end();
}

#[test]
fn each_request_is_answered_once_over_many_laps() {
    shuttle::check_random(|| out_of_order(4, 40), RUNS);
}

#[test]
fn no_sleeper_is_left_within_few_context_switches() {
    shuttle::check_pct(|| out_of_order(2, 20), RUNS, 3);
}
