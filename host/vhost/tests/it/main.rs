//! A vhost-user device seen from the other end of its socket: honest guests, hostile guests, guests that
//! leave.

mod device;
mod dirty_log;
mod hostile;
mod keeper;
mod lifecycle;
mod messages;
mod queues;
mod walk;
