//! The threads that take requests from the device.

use super::device::{DevExchange, Device, Stock};
use crate::session::{Session, Slot};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tombolo_mem::Buffer;
use tombolo_sys::Errno;

/// Serves one descriptor until the mount is gone.
pub(super) fn serve(session: &Arc<Session>, device: &Arc<Device>, stock: &Arc<Stock>) {
    let fresh =
        |(slot, buffer): (Box<Slot>, Buffer)| (slot, DevExchange::new(device.clone(), stock.clone(), buffer));
    let (mut slot, mut exchange) = fresh(stock.take());
    loop {
        match exchange.receive(&mut slot) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            // Unmounted; or the connection was aborted, which ABORT_ERROR lets us tell.
            Err(Errno::NODEV | Errno::CONNABORTED) => return,
            Err(error) => {
                tracing::error!(%error, "reading the FUSE device failed; this thread stops");
                return;
            }
        }
        let handled = catch_unwind(AssertUnwindSafe(|| session.handle(slot, exchange)));
        (slot, exchange) = match handled {
            Ok(Some(finished)) => finished,
            Ok(None) => fresh(stock.take()),
            Err(_) => {
                tracing::error!("a request failed with a panic and was answered with an I/O error");
                fresh(stock.take())
            }
        };
    }
}
