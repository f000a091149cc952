//! Requests over links: each is answered once, a side that breaks the rules loses its link, and other links
//! do not notice.

mod echo;
mod endings;
mod hostile_client;
mod hostile_server;
mod ids;
mod test_host;
