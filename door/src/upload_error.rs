//! Why the server stops reading a body, for the handler that waits for it, or for the client.

use axum::BoxError;

use crate::protocol::Protocol;

/// The reason why the server stopped reading a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// It took too long.
    #[error(
        "the rest of the request did not arrive in time: send it without pauses, or raise `--body-timeout`"
    )]
    TooSlow,
    /// Other bodies needed the room.
    #[error(
        "too many requests are arriving at once, and this one took the longest: send it again, or raise \
         `--max-unread-bytes`"
    )]
    NoRoom,
}

impl UploadError {
    /// The reason why the server stopped reading a body, if `error` is that.
    pub fn find(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut chain = std::iter::successors(Some(error), |error| error.source());
        chain.find_map(|error| error.downcast_ref()).copied()
    }

    pub(crate) fn into_error(self, protocol: Protocol) -> BoxError {
        match (protocol, self) {
            #[cfg(feature = "grpc")]
            (Protocol::Grpc, Self::TooSlow) => tonic::Status::deadline_exceeded(self.to_string()).into(),
            #[cfg(feature = "grpc")]
            (Protocol::Grpc, Self::NoRoom) => tonic::Status::resource_exhausted(self.to_string()).into(),
            (_, cut) => cut.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_found_below_other_errors() {
        let error = axum::Error::new(UploadError::NoRoom);
        assert_eq!(UploadError::find(&error), Some(UploadError::NoRoom));
        assert_eq!(UploadError::find(&std::io::Error::other("gone")), None);
    }
}
