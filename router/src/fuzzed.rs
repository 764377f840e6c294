//! The server's own modules as a library, for fuzz targets only; without the feature `fuzzing` it is empty.
#![cfg(feature = "fuzzing")]
#![expect(dead_code, unused_imports, reason = "what a fuzz target does not reach is the program's")]

mod args;
mod auth;
mod collector;
mod commands;
mod config;
mod control_groups;
mod cost;
mod current;
mod device_turn;
mod features;
mod file_versions;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
mod info;
mod machine;
mod memory;
mod models;
mod parent;
mod reload;
mod residency;
mod secret;
mod serve;
mod signals;
mod startup;
mod state;
mod telemetry;
mod transports;
mod vector_numbers;

/// See [`http::fuzzing`].
pub fn request(data: &[u8]) {
    http::fuzzing::request(data);
}
