//! The tests that may share a process.

mod cached;
mod capabilities;
mod conformance;
mod crowd;
mod endings;
mod fence;
mod handles;
mod hostile_client;
mod hostile_server;
mod identities;
mod in_place;
mod numbers;
mod openings;
mod reconnect;
mod releases;
mod smoke;
mod socket;
mod writes_behind;
