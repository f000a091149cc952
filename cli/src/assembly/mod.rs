//! Composition of front ends, layers and back ends: command-line options ([`options`]), their validation as a
//! whole ([`plan`]), running servers ([`servers`]; [`disk`] for one disk, [`disk_mount`] for its mount,
//! [`served_disk`] for the code that both share), and commands for the peer ([`hints`]). [`layers`] changes
//! the layers of a served disk, [`keeper`] restarts servers, and [`sandbox`] confines them.

pub mod disk;
pub mod disk_mount;
pub mod hints;
pub mod keeper;
pub mod layers;
pub mod options;
pub mod plan;
pub mod sandbox;
pub mod served_disk;
pub mod servers;
