//! Requests over links: whatever is asked is answered once, whoever lies loses their link, and nobody else notices.

mod bed;
mod echo;
