//! The meaning of this build's Cargo features, which have the names of text-embeddings-inference.
//!
//! Input: the features, and the variable `USE_FLASH_ATTENTION`. Output: lines for the log, and whether flash
//! attention may be used. What must hold: a feature that cannot be true ends the build with the reason; one
//! that changes nothing, or less than its name says, is in the log.

#[cfg(not(feature = "candle"))]
compile_error!(
    "a server needs a backend: build with the feature `candle`; `ort` and `python` come on top of it"
);
#[cfg(not(any(feature = "plain-http", feature = "grpc")))]
compile_error!("a server needs a transport: build with the feature `http`, `grpc` or both");
#[cfg(all(feature = "cuda", feature = "metal"))]
compile_error!("a build computes on one kind of device: choose `candle-cuda` or `metal`");
#[cfg(all(feature = "candle-cuda", feature = "candle-cuda-turing"))]
compile_error!("`candle-cuda` and `candle-cuda-turing` are for different cards: choose one");

/// The variable of text-embeddings-inference that switches flash attention off.
const VARIABLE: &str = "USE_FLASH_ATTENTION";

/// The features whose meaning the log tells.
#[derive(Debug, Clone, Copy, Default)]
struct Features {
    cuda: bool,
    turing: bool,
    /// Flash attention 2.
    flash: bool,
    /// A feature that changes nothing.
    idle: Option<&'static str>,
}

/// Sentences for the log about this build.
pub(crate) fn notices() -> Vec<String> {
    let features = Features {
        cuda: cfg!(feature = "cuda"),
        turing: cfg!(feature = "candle-cuda-turing"),
        flash: cfg!(feature = "flash-attn"),
        idle: if cfg!(feature = "mkl") {
            Some("mkl")
        } else {
            cfg!(feature = "accelerate").then_some("accelerate")
        },
    };
    features.notices(std::env::var(VARIABLE).ok().as_deref())
}

/// Whether flash attention may be used: as in text-embeddings-inference, everything but `True` switches it
/// off.
pub(crate) fn flash_attention() -> bool {
    std::env::var(VARIABLE).map_or(true, |value| value == "True")
}

impl Features {
    fn notices(self, flash_attention: Option<&str>) -> Vec<String> {
        let mut notices = Vec::new();
        if let Some(name) = self.idle {
            notices.push(format!(
                "built with `{name}`, which changes nothing: the kernels for the CPU are this project's own"
            ));
        }
        if self.cuda {
            let why = match flash_attention {
                Some(other) if other != "True" => Some(format!("`{VARIABLE}={other}` switches it off")),
                _ if self.flash => None,
                Some(_) => Some(format!("`{VARIABLE}=True` has no effect, because this build has none")),
                None if self.turing => Some(
                    "built with `candle-cuda-turing`, for cards before compute capability 8.0".to_owned(),
                ),
                None => Some("built without the feature `flash-attn`".to_owned()),
            };
            notices.extend(why.map(|why| format!("attention runs without flash attention 2: {why}")));
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_a_feature_does_not_do() {
        let none = Features::default();
        let cuda = Features { cuda: true, ..none };
        let turing = Features { turing: true, ..cuda };
        let flash = Features { flash: true, ..cuda };
        for (features, variable, expected) in [
            (none, None, vec![]),
            (none, Some("False"), vec![]),
            (Features { idle: Some("mkl"), ..none }, None, vec!["built with `mkl`, which changes nothing"]),
            (
                Features { idle: Some("accelerate"), ..cuda },
                None,
                vec![
                    "built with `accelerate`, which changes nothing",
                    "attention runs without flash attention 2: built without the feature `flash-attn`",
                ],
            ),
            (
                cuda,
                Some("True"),
                vec!["attention runs without flash attention 2: `USE_FLASH_ATTENTION=True` has no"],
            ),
            (
                cuda,
                Some("False"),
                vec!["attention runs without flash attention 2: `USE_FLASH_ATTENTION=False` swi"],
            ),
            (flash, None, vec![]),
            (flash, Some("True"), vec![]),
            (
                flash,
                Some("false"),
                vec!["attention runs without flash attention 2: `USE_FLASH_ATTENTION=false` swi"],
            ),
            (turing, None, vec!["attention runs without flash attention 2: built with `candle-cuda-turing`"]),
        ] {
            let notices = features.notices(variable);
            assert_eq!(notices.len(), expected.len(), "{notices:?}");
            for (notice, start) in notices.iter().zip(expected) {
                assert!(notice.starts_with(start), "{notice}");
            }
        }
    }
}
