//! Model checking of the unmodified rings and doorbells: all interleavings of a few steps, under weak memory,
//! by loom; many random interleavings of long runs by shuttle. Loom finds a missing fence, shuttle errors
//! that take laps.

mod long;
mod small;
mod world;
