//! The codec as its users call it.

mod codec;
mod layouts;
