//! An NFS version 3 client: any server's export, behind the waist.
#![forbid(unsafe_code)]
