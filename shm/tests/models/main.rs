//! The rings and doorbells, as they are, on memory whose interleavings are tried: all of a few steps, with
//! what weak memory allows, by loom; many random ones of long runs by shuttle. Loom finds a fence that is
//! missing, shuttle what takes laps.

mod long;
mod small;
mod world;
