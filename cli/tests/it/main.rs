//! The tests that may share a process.

mod ask;
mod command_line;
mod common;
mod copies;
mod descriptors;
mod disk;
mod disk_check;
mod disk_config;
mod disk_convert;
mod disk_kept;
mod file_commands;
mod files;
mod files_kept;
mod mount;
mod mount_nfs;
mod nfs;
mod nfs_shm;
mod nfs_ssh;
mod nfs_tls;
mod proxy;
mod sandbox;
mod serve;
mod sessions;
mod shm;
mod troubleshooting;
mod write_back;
