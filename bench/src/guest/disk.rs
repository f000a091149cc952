//! Disk driver of a guest in this process: virtio-blk requests directly on a queue.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use serde::Deserialize;
use tombolo_vhost_driver::{Driver, DriverSettings, GuestBuffer, Wait};

use super::{OVERHEAD_BYTES, Pipeline, Slots, no_room};

use crate::error::{Doing, Error, Result};
use crate::measure::Work;

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
    queue: Slots,
    slots: Vec<Slot>,
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
        // All contestants use the same offsets.
        let random = fastrand::Rng::with_seed(1);
        Ok(Rc::new(RefCell::new(Self {
            _driver: driver,
            queue: Slots::new(queue),
            slots,
            disk_bytes,
            random,
        })))
    }

    /// Returns the operation of a row. With several requests in flight, the time of a request is that of the
    /// whole stream divided by the number of requests.
    pub fn work(this: &Rc<RefCell<Self>>, requests: Requests) -> Work<'static> {
        let guest = Rc::clone(this);
        let large = (requests.bytes > 4096).then_some(u64::from(requests.bytes));
        if requests.depth == 1 {
            return Work::repeat(1, move || {
                guest.borrow_mut().stream(1, 1, |guest, slot| guest.submit(slot, requests))
            })
            .bytes(large);
        }
        Work::new(move |count, clock| {
            let mut guest = guest.borrow_mut();
            clock.start();
            let window = requests.depth.min(guest.slots.len());
            guest.stream(count, window, |guest, slot| guest.submit(slot, requests))?;
            clock.lap_of(count);
            Ok(())
        })
        .bytes(large)
    }

    fn submit(&mut self, index: usize, Requests { way, bytes, .. }: Requests) -> Result<()> {
        let slot = *self.slots.get(index).ok_or_else(|| no_room("the request"))?;
        let place = self.random.u64(0..self.disk_bytes / u64::from(bytes));
        let sector = place * u64::from(bytes) / SECTOR_BYTES;
        self.queue.queue.write(slot.header, &(way as u128 | u128::from(sector) << 64).to_le_bytes());
        self.queue.queue.write(slot.status, &[0xff]);
        let data = slot.data.first(bytes);
        let data = if way == Way::Write { data.readable() } else { data.writable() };
        let parts = [slot.header.readable(), data, slot.status.first(1).writable()];
        self.queue.add(index, &parts)
    }
}

impl Pipeline for DiskGuest {
    fn slots(&mut self) -> &mut Slots {
        &mut self.queue
    }

    fn finish_one(&mut self) -> Result<usize> {
        let (index, _) = self.queue.finish()?;
        let mut status = [0xff];
        if let Some(slot) = self.slots.get(index) {
            self.queue.queue.read(slot.status, &mut status);
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
