//! A guest with eight outstanding writes at all times, whose server is killed repeatedly.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use tombolo_vhost_driver::{DriverQueue, GuestBuffer};

use crate::common::{PATIENCE, Scratch, Server, signal};
use crate::disk::{DISK_BYTES, FLUSH, IN, OUT, ask, child_of, guest, with_image};

const PLACES: u64 = 8;
const SECTORS: u64 = 64;

/// One of the outstanding requests.
struct Place {
    head: GuestBuffer,
    body: GuestBuffer,
    status: GuestBuffer,
    /// Descriptor chain; for a write, also sector and contents.
    under_way: Option<(u16, Option<(u64, u64)>)>,
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
        self.under_way = Some((queue.submit(&parts).expect("room"), Some((sector, number))));
    }

    fn flush(&mut self, queue: &mut DriverQueue) {
        queue.write(self.head, &u128::from(FLUSH).to_le_bytes());
        queue.write(self.status, &[0xee]);
        let parts = [self.head.readable(), self.status.writable()];
        self.under_way = Some((queue.submit(&parts).expect("room"), None));
    }
}

fn contents(number: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    bytes
}

/// Kills the server, a new one each time.
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

/// Contents of a sector before the guest writes to it.
const GOLDEN: u64 = 1 << 40;

fn golden(scratch: &Scratch) {
    let image = fs::File::options().write(true).open(scratch.path("vm.img")).expect("open");
    let all: Vec<u8> = (0..DISK_BYTES / 512).flat_map(|sector| contents(GOLDEN + sector)).collect();
    image.write_all_at(&all, 0).expect("write");
}

fn holds(queue: &mut DriverQueue, model: &[u64]) {
    for (sector, number) in (0..).zip(model) {
        assert_eq!(ask(queue, IN, sector, &[0; 512]), (contents(*number).to_vec(), 0), "sector {sector}");
    }
}

#[test]
fn each_disk_request_completes_once_across_kills() {
    let scratch = with_image();
    golden(&scratch);
    is_kept(&scratch, "vm.img");
}

/// Checks unflushed writes, which are in the redo log and in memory of the keeper.
#[test]
fn overlay_loses_no_write_across_kills() {
    let scratch = with_image();
    golden(&scratch);
    scratch.run("disk create vm.overlay --base vm.img").succeeded();
    is_kept(&scratch, "vm.overlay");
}

fn is_kept(scratch: &Scratch, image: &str) {
    let kills_wanted = if std::env::var_os("TOMBOLO_LONG").is_some() { 60 } else { 5 };
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let words = format!("disk {image} --vhost-user vm.sock -qq");
    let server = scratch.serve(format!("{words} --keep"));
    let (driver, mut queue) = guest(scratch);
    let mut places: Vec<Place> = (0..PLACES).map(|_| Place::new(&mut queue)).collect();
    let mut model: Vec<u64> = (0..DISK_BYTES / 512).map(|sector| GOLDEN + sector).collect();
    let mut killer = Killer { keeper: &server, last: None, kills: 0 };
    let (mut number, began) = (0, Instant::now());
    loop {
        let is_over = killer.kills >= kills_wanted;
        for (index, place) in
            (0..).zip(&mut places).filter(|(_, place)| place.under_way.is_none() && !is_over)
        {
            number += 1;
            match random.u32(..32) {
                0 => place.flush(&mut queue),
                // Sectors never overlap, since the device may reorder writes.
                _ => place.write(&mut queue, random.u64(..SECTORS) * PLACES + index, number),
            }
        }
        // Early, while most sectors are unwritten: state kept only in memory would be lost first.
        let is_early = killer.kills < 3 && number >= 64 * (u64::from(killer.kills) + 1);
        if !is_over && (is_early || random.u32(..200) == 0) {
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
        if let (_, Some((sector, number))) = place.under_way.take().expect("it is under way") {
            model[sector as usize] = number;
        }
    }
    assert!(queue.try_used().is_none());
    holds(&mut queue, &model);
    eprintln!("{} kills, {number} requests in {:?}", killer.kills, began.elapsed());
    drop((driver, queue));
    server.stop();
    // The keeper retains nothing.
    let server = scratch.serve(&words);
    holds(&mut guest(scratch).1, &model);
    server.stop();
}
