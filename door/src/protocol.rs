//! The protocols of listeners.

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and HTTP/2.
    Http,
    /// HTTP/2 with the messages of gRPC.
    Grpc,
}
