//! Every procedure of NFS version 3 and of MOUNT, by name: results, attributes before and after, and the
//! failures that RFC 1813 names. Over the reference model and over a directory of the host.

mod attributes;
mod data;
mod digests;
mod lease;
mod listing;
mod making;
mod mount;
mod names;
mod packing;
mod removing;
mod side;
mod volume;
