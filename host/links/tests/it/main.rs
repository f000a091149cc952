//! Links between two ends in one process: how they are made, requests over them, and models of what threads
//! do in which order.

mod ids_model;
mod listener;
mod receiver_model;
mod requests;
