//! Puts front ends, layers and back ends together: what is asked for ([`options`]), checked as a whole
//! ([`plan`]), running ([`servers`], and [`disk`] for one disk, which [`disk_mount`] shows as a file;
//! [`served_disk`] is what both have of disks), and what to type on the other side ([`hints`]); [`layers`]
//! has what lies beneath a disk changed while it is served, [`keeper`] has servers follow each other, and
//! [`sandbox`] confines them.

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
