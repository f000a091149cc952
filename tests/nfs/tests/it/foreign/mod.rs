//! Clients that others wrote, with codecs of their own: what they make of the server is not what we make of it.

mod libnfs;
mod nfs3_client;
