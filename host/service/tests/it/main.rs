//! Tests of the sandbox.

mod sandbox;
