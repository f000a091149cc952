//! One module per command, each with its arguments and its `run`.

pub mod broker;
pub mod cache;
pub mod completions;
pub mod disk;
pub mod doctor;
pub mod files;
pub mod keys;
mod keys_of_tls;
pub mod links;
pub mod man;
pub mod mount;
pub mod proxy;
pub mod serve;
pub mod session;
pub mod top;
pub mod tune;
pub mod umount;
pub mod upgrade;
