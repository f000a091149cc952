//! Requests that wait for a replaced disk.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::BlockDevice;
use tombolo_core::{Ctx, SessionId};
use tombolo_layer_basic::switch::Switch;

/// Waker that uses the switch, as a task does that is polled by the thread that wakes it.
struct UserOnWake(Switch, mpsc::Sender<bool>);

impl Wake for UserOnWake {
    fn wake(self: Arc<Self>) {
        let _ = self.1.send(self.0.is_lost());
    }
}

#[test]
fn requests_are_woken_without_the_lock() {
    let disk = || Arc::new(MemoryDisk::new(1 << 20).expect("a disk"));
    let switch = Switch::new(disk());
    let (woken, wakes) = mpsc::channel();
    let waker = Waker::from(Arc::new(UserOnWake(switch.clone(), woken)));
    switch.replace(disk()).expect("nothing is under way");
    let waits = pin!(switch.flush(&Ctx::root(SessionId(1))).resolve());
    assert!(waits.poll(&mut Context::from_waker(&waker)).is_pending());
    let undone = switch.clone();
    thread::spawn(move || undone.take_back());
    assert_eq!(wakes.recv_timeout(Duration::from_secs(10)), Ok(false));
}
