//! Bodies of the fuzz targets, one module for each parser of untrusted bytes. `fuzz/` runs them under
//! libFuzzer; the tests of this crate run them on the inputs of `fuzz/corpus`.

#![forbid(unsafe_code)]

pub mod fuse_decode;
pub mod image_sidecar;
pub mod keeper;
pub mod link_hello;
pub mod mount3;
pub mod nbd;
pub mod nfs3_args;
pub mod nfs3_results;
pub mod nfs_client;
pub mod nfs_side;
pub mod qcow2;
pub mod redo_log;
pub mod rpc_link;
pub mod rpc_record;
pub mod virtio_blk;
pub mod virtqueue_walk;
pub mod vrpc_reply;
pub mod vrpc_request;
mod xdr;
