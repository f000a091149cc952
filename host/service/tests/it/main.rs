//! What an operator is promised.

mod sandbox;
