//! A guest that writes all the time, at eight places at once, while its server is killed again and again.

use std::collections::BTreeMap;
use std::time::Instant;

use tombolo_vhost_driver::{DriverQueue, GuestBuffer};

use crate::common::{Server, signal};
use crate::disk::{IN, OUT, PATIENCE, ask, child_of, guest, with_image};

const PLACES: u64 = 8;
const SECTORS: u64 = 64;

/// One of the requests under way.
struct Place {
    head: GuestBuffer,
    body: GuestBuffer,
    status: GuestBuffer,
    /// The chain, the sector, and what is written there.
    under_way: Option<(u16, u64, u64)>,
}

impl Place {
    fn new(queue: &mut DriverQueue) -> Place {
        let [head, body, status] = [16, 512, 1].map(|len| queue.alloc(len).expect("guest memory"));
        Place { head, body, status, under_way: None }
    }

    fn write(&mut self, queue: &mut DriverQueue, sector: u64, number: u64) {
        queue.write(self.head, &(u128::from(OUT) | u128::from(sector) << 64).to_le_bytes());
        queue.write(self.body, &contents(number));
        queue.write(self.status, &[0xee]);
        let parts = [self.head.readable(), self.body.readable(), self.status.writable()];
        self.under_way = Some((queue.submit(&parts).expect("room"), sector, number));
    }
}

fn contents(number: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    bytes
}

/// Kills its server, another one each time.
struct Killer<'a> {
    keeper: &'a Server,
    last: Option<u32>,
    kills: u32,
}

impl Killer<'_> {
    fn kill(&mut self) {
        let victim = child_of(self.keeper.pid()).filter(|pid| Some(*pid) != self.last);
        if let Some(victim) = victim {
            signal(victim, "KILL");
            self.last = Some(victim);
            self.kills += 1;
        }
    }
}

#[test]
fn each_request_is_answered_once_however_often_the_server_is_killed() {
    let kills_wanted = if std::env::var_os("TOMBOLO_LONG").is_some() { 60 } else { 5 };
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let scratch = with_image();
    let server =
        scratch.serve(&["disk", "vm.img", "--keep", "--vhost-user", "vm.sock", "-qq"], "ready control");
    let (_driver, mut queue) = guest(&scratch);
    let mut places: Vec<Place> = (0..PLACES).map(|_| Place::new(&mut queue)).collect();
    let mut written: BTreeMap<u64, u64> = BTreeMap::new();
    let mut killer = Killer { keeper: &server, last: None, kills: 0 };
    let (mut number, began) = (0, Instant::now());
    loop {
        let is_over = killer.kills >= kills_wanted;
        for (index, place) in
            (0..).zip(&mut places).filter(|(_, place)| place.under_way.is_none() && !is_over)
        {
            number += 1;
            // No two of them are at one sector: which is first is for the device to choose.
            place.write(&mut queue, index * SECTORS + random.u64(..SECTORS), number);
        }
        if !is_over && random.u32(..200) == 0 {
            killer.kill();
        }
        if places.iter().all(|place| place.under_way.is_none()) {
            break;
        }
        let used = queue.wait_used(PATIENCE).expect("an answer");
        let is_it = |place: &&mut Place| place.under_way.is_some_and(|(head, ..)| head == used.head);
        let place = places.iter_mut().find(is_it).expect("an answer to what was not answered");
        let mut status = [0xee];
        queue.read(place.status, &mut status);
        assert_eq!(status, [0]);
        let (_, sector, number) = place.under_way.take().expect("it is under way");
        written.insert(sector, number);
    }
    assert!(queue.try_used().is_none());
    for (sector, number) in written {
        assert_eq!(ask(&mut queue, IN, sector, &[0; 512]), (contents(number).to_vec(), 0), "sector {sector}");
    }
    eprintln!("{} kills, {number} writes in {:?}", killer.kills, began.elapsed());
    server.stop();
}
