//! The gRPC interface, generated from `tei.proto`.
