//! What can be asked of a server, spelt the same on the command line and in the configuration file.

pub mod address;
pub mod coherence;
pub mod config;
pub mod doorbell;
pub mod export;
pub mod fuse;
pub mod nfs;
pub mod shm;
pub mod submounts;
pub mod virtiofs;
