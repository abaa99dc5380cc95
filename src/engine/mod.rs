//! The life of a session: tokens seen, what is cached, what is pending. Knows no backend.

pub mod sampling;
