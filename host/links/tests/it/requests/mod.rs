//! Requests over links: whatever is asked is answered once, whoever lies loses their link, and nobody else notices.

mod bed;
mod echo;
mod endings;
mod hostile_client;
mod hostile_server;
mod ids;
