//! Disk driver of a guest in this process: virtio-blk requests directly on a queue.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer, Wait};

use crate::error::{Doing, Error, Result};
use crate::measure::Work;

/// Time limit of a reply, after which the server counts as dead.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of a queue besides request data: rings, indirect tables, headers.
const OVERHEAD_BYTES: usize = 1 << 20;
const SECTOR_BYTES: u64 = 512;
const HEADER_BYTES: u32 = 16;
/// Feature that every driver negotiates; without it, each write is durable when answered.
const FEATURE_FLUSH: u64 = 1 << 9;

/// Direction of the data (virtio 1.2, §5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    Read = 0,
    Write = 1,
}

/// Parameters of a row: size and depth of random requests.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Requests {
    pub way: Way,
    pub bytes: u32,
    pub depth: usize,
}

/// A connected guest with one queue.
pub struct DiskGuest {
    // Dropping it closes the connection.
    _driver: Driver,
    queue: DriverQueue,
    slots: Vec<Slot>,
    /// Slot of each chain.
    slot_of: Vec<usize>,
    disk_bytes: u64,
    random: fastrand::Rng,
}

#[derive(Clone, Copy)]
struct Slot {
    header: GuestBuffer,
    status: GuestBuffer,
    data: GuestBuffer,
}

impl DiskGuest {
    /// Connects to a server of a disk of `disk_bytes`, with `slots` concurrent requests of `data_bytes` each.
    pub fn connect(
        socket: &Path,
        wait: Wait,
        slots: usize,
        data_bytes: u32,
        disk_bytes: u64,
    ) -> Result<Rc<RefCell<Self>>> {
        let settings = DriverSettings {
            queue_memory_bytes: OVERHEAD_BYTES + slots * (data_bytes as usize + 4096),
            wait,
            device_features: FEATURE_FLUSH,
            ..DriverSettings::default()
        };
        let (driver, queues) = Driver::connect(socket, settings).doing_to("connect to", socket)?;
        let mut queue = queues.into_iter().next().ok_or_else(|| no_room("a queue"))?;
        let mut alloc = |bytes| queue.alloc(bytes).ok_or_else(|| no_room("buffers"));
        let mut slot =
            || Ok(Slot { header: alloc(HEADER_BYTES)?, status: alloc(8)?, data: alloc(data_bytes)? });
        let slots = (0..slots).map(|_| slot()).collect::<Result<_>>()?;
        let slot_of = vec![0; usize::from(queue.size())];
        // All contestants use the same offsets.
        let random = fastrand::Rng::with_seed(1);
        Ok(Rc::new(RefCell::new(Self { _driver: driver, queue, slots, slot_of, disk_bytes, random })))
    }

    /// Returns the operation of a row. With several requests in flight, the time is that of one in the
    /// stream.
    pub fn work(this: &Rc<RefCell<Self>>, requests: Requests) -> Work<'static> {
        let guest = Rc::clone(this);
        let large = (requests.bytes > 4096).then_some(u64::from(requests.bytes));
        if requests.depth == 1 {
            return Work::repeat(1, move || {
                let mut guest = guest.borrow_mut();
                guest.submit(0, requests)?;
                guest.queue.kick();
                guest.finish().map(drop)
            })
            .bytes(large);
        }
        Work::new(move |count, clock| {
            let mut guest = guest.borrow_mut();
            clock.start();
            guest.stream(count, requests)?;
            clock.lap_of(count);
            Ok(())
        })
        .bytes(large)
    }

    fn stream(&mut self, count: u64, requests: Requests) -> Result<()> {
        let window = requests.depth.min(self.slots.len()).min(usize::try_from(count).unwrap_or(usize::MAX));
        for slot in 0..window {
            self.submit(slot, requests)?;
        }
        self.queue.kick();
        let mut unsent = count - window as u64;
        for _ in 0..count {
            let slot = self.finish()?;
            if unsent > 0 {
                unsent -= 1;
                self.submit(slot, requests)?;
                self.queue.kick();
            }
        }
        Ok(())
    }

    fn submit(&mut self, index: usize, Requests { way, bytes, .. }: Requests) -> Result<()> {
        let slot = *self.slots.get(index).ok_or_else(|| no_room("the request"))?;
        let place = self.random.u64(0..self.disk_bytes / u64::from(bytes));
        let sector = place * u64::from(bytes) / SECTOR_BYTES;
        self.queue.write(slot.header, &(way as u128 | u128::from(sector) << 64).to_le_bytes());
        self.queue.write(slot.status, &[0xff]);
        let data = slot.data.first(bytes);
        let data = if way == Way::Write { data.readable() } else { data.writable() };
        let parts = [slot.header.readable(), data, slot.status.first(1).writable()];
        let chain = self.queue.add(&parts).ok_or_else(|| no_room("the chain"))?;
        if let Some(place) = self.slot_of.get_mut(usize::from(chain)) {
            *place = index;
        }
        Ok(())
    }

    /// Waits for a reply; returns its slot.
    fn finish(&mut self) -> Result<usize> {
        let used = self.queue.wait_used(PATIENCE).doing(|| "wait for an answer".to_owned())?;
        let index = self.slot_of.get(usize::from(used.head)).copied().unwrap_or_default();
        let mut status = [0xff];
        if let Some(slot) = self.slots.get(index) {
            self.queue.read(slot.status, &mut status);
        }
        match status {
            [0] => Ok(index),
            [status] => Err(Error::Wrong {
                what: "a request to the disk".to_owned(),
                answer: format!("status {status}"),
            }),
        }
    }
}

fn no_room(what: &str) -> Error {
    Error::Server { program: "driver".to_owned(), what: format!("no space for {what}") }
}
