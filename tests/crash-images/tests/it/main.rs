//! All tests, in one program.

mod cache;
mod disk_images;
mod disks;
mod model;
#[expect(dead_code, reason = "shared with the tests of the cache")]
#[path = "../../../../layer/cache/tests/it/world.rs"]
mod world;
mod write_back;
