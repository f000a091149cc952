//! Tests that measure descriptors and memory of the whole process: one at a time.

#[path = "../it/common/mod.rs"]
mod common;
mod footprint;
mod pressure;

/// Held while a test has the process to itself.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
