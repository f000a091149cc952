//! All tests, in one program.

mod corpus;
