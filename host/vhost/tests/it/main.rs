//! Tests of a vhost-user device through its socket: well-behaved, malicious and leaving guests.

mod device;
mod dirty_log;
mod hostile;
mod keeper;
mod lifecycle;
mod messages;
mod queues;
mod walk;
