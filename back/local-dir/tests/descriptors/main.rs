//! What counts the descriptors and the memory of the whole process: one test at a time.

#[path = "../it/common/mod.rs"]
mod common;
mod footprint;
mod pressure;

/// Held while a test has the process to itself.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
