//! Requests over links: each is answered once, a violating side loses its link, and other links are not
//! affected.

mod echo;
mod endings;
mod hostile_client;
mod hostile_server;
mod ids;
mod quiet;
mod test_host;
