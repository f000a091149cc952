//! Tests of the public API.

mod codec;
mod layouts;
