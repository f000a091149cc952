//! Allocation-free inline path. A separate program, because its allocator counts all threads.

#[path = "it/guest.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod guest;
#[path = "it/ram_disk.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod ram_disk;

use guest::{Guest, IN, OUT, header};
use tombolo_allocations::of_all_threads;
use tombolo_vhost_driver::Part;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;

#[test]
fn a_request_that_is_answered_at_once_allocates_nothing() {
    let mut guest = Guest::new();
    let queue = &mut guest.queues[1];
    let buffers = [16, 4096, 1].map(|len| queue.alloc(len).unwrap());
    for kind in [IN, OUT] {
        queue.write(buffers[0], &header(kind, 8));
        let [head, data, status] = buffers;
        let parts: [Part; 3] =
            [head.readable(), if kind == IN { data.writable() } else { data.readable() }, status.writable()];
        let mut rounds = |count| {
            for _ in 0..count {
                queue.submit(&parts).unwrap();
                queue.wait_used(guest::PATIENCE).unwrap();
            }
        };
        // The disk's own list of calls grows by doubling.
        rounds(600);
        let before = of_all_threads();
        rounds(200);
        let allocations = of_all_threads() - before;
        assert!(allocations <= 1, "{kind}: {allocations} in 200 requests");
    }
}
