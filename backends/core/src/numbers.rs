//! The arithmetic of a model: chosen here, from `--dtype`, the device and the stored weights.

use crate::DType;

/// The arithmetic of a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// The type that the model computes in.
    pub computed: DType,
    /// The type that clients read off `/info`: float16 if it was requested, as TEI says it, even if a CPU
    /// computes in something else instead.
    pub reported: DType,
}

/// The types that a device, or a library on it, computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberSupport {
    /// A CPU with this project's kernels: all types but float16.
    Cpu {
        /// Whether it computes in 16 bits, bfloat16 or integers in its place, faster than in float32.
        fast_16_bits: bool,
        /// Whether the weights are stored in bfloat16 or quantised, so that bfloat16 rounds them no further.
        stored_rounded: bool,
    },
    /// A GPU with this project's kernels: float32 and the 16-bit types.
    Gpu {
        /// Whether it multiplies bfloat16: NVIDIA's do from compute capability 8.0 on.
        has_bfloat16: bool,
        /// Whether values may be too large for float16: the weights are stored in bfloat16, or the
        /// architecture is known for it.
        needs_range: bool,
    },
    /// float32 and the 16-bit types: PyTorch.
    Floats,
    /// float32 only: a GPU without this project's kernels.
    Float32,
    /// The type that an ONNX file is written in.
    Fixed(DType),
}

impl Numbers {
    /// The arithmetic for `requested`, the value of `--dtype`.
    ///
    /// # Errors
    ///
    /// The requested type, if it is not supported.
    pub fn choose(requested: Option<DType>, support: NumberSupport) -> Result<Self, DType> {
        use DType::{BFloat16, Float16, Float32};
        let computed = match support {
            NumberSupport::Cpu { fast_16_bits, stored_rounded } => match requested {
                None if fast_16_bits && stored_rounded => BFloat16,
                Some(Float16) if fast_16_bits => BFloat16,
                None | Some(Float16) => Float32,
                Some(dtype) => dtype,
            },
            NumberSupport::Gpu { .. } | NumberSupport::Floats => match requested {
                None => match support {
                    NumberSupport::Gpu { has_bfloat16: true, needs_range: true } => BFloat16,
                    NumberSupport::Gpu { .. } => Float16,
                    _ => Float32,
                },
                Some(dtype @ (Float32 | BFloat16 | Float16)) => dtype,
                Some(dtype) => return Err(dtype),
            },
            NumberSupport::Float32 => match requested {
                None | Some(Float32) => Float32,
                Some(dtype) => return Err(dtype),
            },
            NumberSupport::Fixed(fixed) => match requested {
                Some(dtype) if dtype != fixed => return Err(dtype),
                _ => fixed,
            },
        };
        Ok(Self { computed, reported: if requested == Some(Float16) { Float16 } else { computed } })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn the_arithmetic_follows_from_flag_device_and_checkpoint() {
        use DType::{BFloat16, Float16, Float32, Int4, Int8};
        use NumberSupport::{Fixed, Floats};
        let cpu = |fast_16_bits, stored_rounded| NumberSupport::Cpu { fast_16_bits, stored_rounded };
        let gpu = |has_bfloat16, needs_range| NumberSupport::Gpu { has_bfloat16, needs_range };
        for (requested, support, expected) in [
            (None, cpu(true, true), Ok([BFloat16, BFloat16])),
            (None, cpu(true, false), Ok([Float32, Float32])),
            (None, cpu(false, true), Ok([Float32, Float32])),
            (Some(Float32), cpu(true, true), Ok([Float32, Float32])),
            (Some(BFloat16), cpu(false, false), Ok([BFloat16, BFloat16])),
            (Some(Float16), cpu(true, false), Ok([BFloat16, Float16])),
            (Some(Float16), cpu(false, true), Ok([Float32, Float16])),
            (Some(Int8), cpu(false, false), Ok([Int8, Int8])),
            (Some(Int4), cpu(true, true), Ok([Int4, Int4])),
            (None, gpu(true, true), Ok([BFloat16, BFloat16])),
            (None, gpu(true, false), Ok([Float16, Float16])),
            (None, gpu(false, true), Ok([Float16, Float16])),
            (Some(Float32), gpu(true, true), Ok([Float32, Float32])),
            (Some(Float16), gpu(true, true), Ok([Float16, Float16])),
            (Some(Int4), gpu(true, false), Err(())),
            (None, Floats, Ok([Float32, Float32])),
            (Some(BFloat16), Floats, Ok([BFloat16, BFloat16])),
            (Some(Float16), Floats, Ok([Float16, Float16])),
            (Some(Int8), Floats, Err(())),
            (None, NumberSupport::Float32, Ok([Float32, Float32])),
            (Some(Float32), NumberSupport::Float32, Ok([Float32, Float32])),
            (Some(BFloat16), NumberSupport::Float32, Err(())),
            (Some(Int4), NumberSupport::Float32, Err(())),
            (None, Fixed(Float16), Ok([Float16, Float16])),
            (Some(Float16), Fixed(Float16), Ok([Float16, Float16])),
            (Some(Float32), Fixed(Float16), Err(())),
            (Some(Float16), Fixed(Float32), Err(())),
        ] {
            let expected = expected
                .map(|[computed, reported]| Numbers { computed, reported })
                .map_err(|()| requested.unwrap());
            assert_eq!(Numbers::choose(requested, support), expected, "{requested:?} {support:?}");
        }
    }
}
