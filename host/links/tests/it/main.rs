//! Links between two ends in one process: set-up, requests, and models of thread interleavings.

mod ids_model;
mod listener;
mod receiver_model;
mod requests;
mod wait;
