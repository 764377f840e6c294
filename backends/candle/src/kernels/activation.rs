//! Activation functions, alone and as gates.
//!
//! Input and output: slices of `f32`. What must hold: NaN stays NaN, and no value overflows on its way to a
//! finite result.

use super::simd::{dispatch, exp2, mul_add};
use std::f32::consts::LOG2_E;
use text_embeddings_backend_core::Activation;

/// `x / (1 + e^-x)`
#[inline(always)]
pub(super) fn silu<const FUSED: bool>(x: f32) -> f32 {
    let exponent = (x * -LOG2_E).min(127.0);
    x / (1.0 + exp2::<FUSED>(exponent))
}

/// `1 - Φ(y)` for y from 0 to `flat`, as a polynomial in t = 2y / flat - 1, highest power first. Beyond
/// `flat`, Φ is taken as 0 or 1.
struct NormalTail<const N: usize> {
    flat: f32,
    polynomial: [f32; N],
}

/// Fitted here by iterated weighted least squares at Chebyshev points, for the least error of `y · (1 -
/// Φ(y))`: 5e-7. At t = 1 it is zero, also in `f32`.
const EXACT_TAIL: NormalTail<16> = NormalTail {
    flat: 5.5,
    polynomial: [
        -0.005_568_287,
        0.005_321_725,
        0.030_091_09,
        -0.043_490_216,
        -0.049_023_516,
        0.133_184_67,
        -0.034_958_7,
        -0.163_046_96,
        0.218_446_31,
        -0.051_400_654,
        -0.177_167_39,
        0.271_890_22,
        -0.206_807_9,
        0.094_557_91,
        -0.025_008_066,
        0.002_979_753_5,
    ],
};
/// Fitted in the same way, as a multiple of `1 - t`. The error, 1.6e-5, is the one that begins at 4.5.
const SHORT_TAIL: NormalTail<10> = NormalTail {
    flat: 4.5,
    polynomial: [
        -0.019_510_34,
        0.029_558_878,
        0.050_092_302,
        -0.129_193_51,
        0.037_209_09,
        0.156_504_33,
        -0.246_454_83,
        0.180_916_38,
        -0.071_343_56,
        0.012_221_271,
    ],
};

/// `x · Φ(x)` with Φ of the normal distribution, as `max(x, 0) - |x| · (1 - Φ(|x|))`. A division would take
/// longer than the polynomial.
#[inline(always)]
fn gelu<const FUSED: bool, const N: usize>(x: f32, tail: &NormalTail<N>) -> f32 {
    let near = if x.abs() > tail.flat { tail.flat } else { x.abs() };
    let t = mul_add::<FUSED>(near, 2.0 / tail.flat, -1.0);
    let mut sum = tail.polynomial[0];
    for &coefficient in &tail.polynomial[1..] {
        sum = mul_add::<FUSED>(sum, t, coefficient);
    }
    let positive = if x > 0.0 { x } else { 0.0 };
    mul_add::<FUSED>(-near, sum, positive)
}

/// `½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))`, which equals `x / (1 + e^-2y)` with the argument y of tanh.
#[inline(always)]
fn gelu_tanh<const FUSED: bool>(x: f32) -> f32 {
    const FACTOR: f32 = -2.0 * 0.797_884_6 * LOG2_E;
    let exponent = (FACTOR * x * mul_add::<FUSED>(0.044_715 * x, x, 1.0)).min(127.0);
    x / (1.0 + exp2::<FUSED>(exponent))
}

#[inline(always)]
fn sigmoid<const FUSED: bool>(x: f32) -> f32 {
    let value = 1.0 / (1.0 + exp2::<FUSED>((x * -LOG2_E).min(127.0)));
    if x.is_nan() { x } else { value }
}

/// By the exponential where that does not cancel, otherwise by the first terms of the power series.
#[inline(always)]
fn tanh<const FUSED: bool>(x: f32) -> f32 {
    let exponent = (x * (2.0 * LOG2_E)).min(127.0);
    let far = 1.0 - 2.0 / (1.0 + exp2::<FUSED>(exponent));
    let square = x * x;
    let near = x * mul_add::<FUSED>(square, mul_add::<FUSED>(square, 2.0 / 15.0, -1.0 / 3.0), 1.0);
    // NaN takes the near branch, which keeps it.
    if x.abs() >= 0.05 { far } else { near }
}

/// How near an activation must be to its definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nearness {
    /// Within the rounding of `f32`.
    Exact,
    /// Within 2e-5, for values that are then rounded to 16 bits or fewer.
    Rounded,
}

/// Evaluates `$body` with `$f` bound to the activation, so that each loop is compiled for its own function.
macro_rules! with_activation {
    ($activation:expr, $nearness:expr, |$f:ident| $body:expr) => {
        match $activation {
            Activation::Identity => {
                let $f = |x: f32| x;
                $body
            }
            Activation::Silu => {
                let $f = silu::<FUSED>;
                $body
            }
            Activation::Gelu if $nearness == Nearness::Rounded => {
                let $f = |x: f32| gelu::<FUSED, _>(x, &SHORT_TAIL);
                $body
            }
            Activation::Gelu => {
                let $f = |x: f32| gelu::<FUSED, _>(x, &EXACT_TAIL);
                $body
            }
            Activation::GeluTanh => {
                let $f = gelu_tanh::<FUSED>;
                $body
            }
            Activation::Relu => {
                let $f = |x: f32| if x < 0.0 { 0.0 } else { x };
                $body
            }
            Activation::Tanh => {
                let $f = tanh::<FUSED>;
                $body
            }
            Activation::Sigmoid => {
                let $f = sigmoid::<FUSED>;
                $body
            }
        }
    };
}

dispatch! {
    /// The first half of each row holds gates, the second half the gated values. The first half becomes
    /// `activation(gate) · up`.
    fn gate(rows: &mut [[f32; 32]], activation: Activation) {
        with_activation!(activation, Nearness::Exact, |f| for row in rows {
            let (gates, ups) = row.split_at_mut(16);
            for (gate, &mut up) in gates.iter_mut().zip(ups) {
                *gate = f(*gate) * up;
            }
        });
    }
}

dispatch! {
    /// Replaces each value by its activation times its factor.
    fn gate_by(values: &mut [f32], factors: &[f32], activation: Activation) {
        with_activation!(activation, Nearness::Exact, |f| for (value, &factor) in values.iter_mut().zip(factors) {
            *value = f(*value) * factor;
        });
    }
}

dispatch! {
    /// Applies the activation to each value.
    fn activate(rows: &mut [[f32; 32]], activation: Activation, nearness: Nearness) {
        with_activation!(activation, nearness, |f| for value in rows.as_flattened_mut() {
            *value = f(*value);
        });
    }
}

dispatch! {
    /// `value = value · sigmoid(gate)`
    fn multiply_by_sigmoid(values: &mut [f32], gate: &[f32]) {
        for (value, &gate) in values.iter_mut().zip(gate) {
            *value *= sigmoid::<FUSED>(gate);
        }
    }
}

dispatch! {
    /// `value = cap · tanh(value / cap)`
    fn soft_cap(values: &mut [f32], cap: f32) {
        let inverse = 1.0 / cap;
        for value in values {
            *value = cap * tanh::<FUSED>(*value * inverse);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::InstructionSet;
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// The definitions in double precision, with Φ by Simpson's rule.
    fn activation_reference(activation: Activation, x: f64) -> f64 {
        let phi = |x: f64| {
            let steps = 2000;
            let width = x / f64::from(steps);
            let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let weight = |i: i32| {
                if i == 0 || i == steps {
                    1.0
                } else if i % 2 == 1 {
                    4.0
                } else {
                    2.0
                }
            };
            0.5 + width / 3.0 * (0..=steps).map(|i| weight(i) * density(f64::from(i) * width)).sum::<f64>()
        };
        match activation {
            Activation::Identity => x,
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Gelu => x * phi(x.clamp(-9.0, 9.0)),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            }
            Activation::Relu => x.max(0.0),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        }
    }

    #[test]
    fn activations_equal_their_definitions_near_and_far() {
        let mut rng = StdRng::seed_from_u64(16);
        for set in InstructionSet::available() {
            for (activation, nearness) in Activation::ALL
                .into_iter()
                .flat_map(|activation| [(activation, Nearness::Exact), (activation, Nearness::Rounded)])
            {
                let is_short = activation == Activation::Gelu && nearness == Nearness::Rounded;
                let short = if is_short { 2e-5 } else { 0.0 };
                for scale in [1e-3_f32, 0.1, 1.0, 3.0, 40.0, 1e4] {
                    let rows: Vec<[f32; 32]> =
                        (0..7).map(|_| std::array::from_fn(|_| rng.random_range(-scale..scale))).collect();
                    let (mut activated, mut gated) = (rows.clone(), rows.clone());
                    activate(set, &mut activated, activation, nearness);
                    gate(set, &mut gated, activation);
                    for (row, (activated, gated)) in rows.iter().zip(activated.iter().zip(&gated)) {
                        for (at, (&x, &got)) in row.iter().zip(activated).enumerate() {
                            let expected = activation_reference(activation, f64::from(x));
                            let tolerance = (5e-6 * expected * expected).max(4.5e-7) + short;
                            let off = (f64::from(got) - expected).abs();
                            assert!(
                                off <= tolerance,
                                "{set} {activation} {nearness:?} {x}: {got} for {expected}"
                            );
                            if at < 16 {
                                let expected = expected * f64::from(row[16 + at]);
                                let scale = f64::from(scale.max(1.0));
                                let tolerance = 3e-6 * scale * scale;
                                let off = (f64::from(gated[at]) - expected).abs();
                                assert!(off <= tolerance, "{set} gate {activation} {x}");
                            }
                        }
                    }
                }
                let mut broken = [[f32::NAN; 32]];
                activate(set, &mut broken, activation, nearness);
                assert!(
                    broken[0].iter().all(|value| value.is_nan()),
                    "{set} {activation} keeps what is not a number"
                );
            }
        }
    }

    #[test]
    fn caps_equal_their_definition_at_every_length() {
        let mut rng = StdRng::seed_from_u64(17);
        for set in InstructionSet::available() {
            for length in 1..=70 {
                let values: Vec<f32> = (0..length).map(|_| rng.random_range(-60.0..60.0)).collect();
                let mut capped = values.clone();
                soft_cap(set, &mut capped, 30.0);
                for (got, value) in capped.iter().zip(values) {
                    let expected = 30.0 * (f64::from(value) / 30.0).tanh();
                    assert!((f64::from(*got) - expected).abs() < 2e-5, "{set}: {got} for {expected}");
                }
            }
        }
    }

    #[test]
    fn gates_equal_their_formula() {
        let mut rng = StdRng::seed_from_u64(8);
        for set in InstructionSet::available() {
            let mut rows = [(); 3].map(|()| std::array::from_fn(|_| rng.random_range(-9.0..9.0)));
            let wide = rows.map(|row: [f32; 32]| row.map(f64::from));
            gate(set, &mut rows, Activation::Silu);
            for (row, wide) in rows.iter().zip(wide) {
                for i in 0..16 {
                    let expected = wide[i] / (1.0 + (-wide[i]).exp()) * wide[i + 16];
                    let tolerance = 2e-6 * expected.abs().max(1.0);
                    let got = row[i];
                    assert!((f64::from(got) - expected).abs() <= tolerance, "{set}: {got} for {expected}");
                }
            }
        }
    }

    #[test]
    fn gates_of_any_size_are_finite() {
        for set in InstructionSet::available() {
            let mut row = [[1.0; 32]];
            row[0][..6].copy_from_slice(&[-1e30, -100.0, -88.0, 88.0, 100.0, 1e30]);
            gate(set, &mut row, Activation::Silu);
            let [lowest, lower, low, high, higher, highest] = row[0][..6] else { unreachable!() };
            for negative in [lowest, lower, low] {
                assert!(negative <= 0.0 && negative.abs() < 1e-6, "{set}: {negative}");
            }
            for (positive, expected) in [(high, 88.0), (higher, 100.0), (highest, 1e30)] {
                assert!((positive - expected).abs() <= 1e-6 * expected, "{set}: {positive}");
            }
        }
    }
}
