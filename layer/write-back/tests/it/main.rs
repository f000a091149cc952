//! Write-back over a cache of an origin in memory: the arrival of changes there, their order, and the state
//! after failures.

mod arriving;
mod calls;
mod conflicts;
mod cut;
mod disk;
mod image;
mod layers;
mod locks;
mod offline;
mod order;
mod random;
mod refused;
mod refused_names;
mod restart;
mod sending;
mod shown;
mod trouble;
mod volatile;
mod watermarks;
mod world;
mod xattrs;
