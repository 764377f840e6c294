//! Products of rotated operands equal the products of the original operands, and bytes lose less if few
//! values are large.

use super::{shapes::in_memory, *};
use crate::{
    kernels::elementwise,
    load::Part,
    operations::{Norm, Operations, Precision},
    plan::NormKind,
};

/// Rows of values around zero. One value in two hundred, and one in each row, is `times` as large.
fn with_outliers(rng: &mut StdRng, (rows, columns): (usize, usize), times: f32) -> Vec<f32> {
    let mut values: Vec<f32> = (0..rows * columns)
        .map(|_| rng.random_range(-1.0..1.0) * if rng.random_bool(0.005) { times } else { 1.0 })
        .collect();
    for row in values.chunks_exact_mut(columns) {
        row[rng.random_range(0..columns)] = times;
    }
    values
}

/// `x · weightᵀ`, both row after row.
fn product(x: &[f64], weight: &[f32], depth: usize) -> Vec<f64> {
    let dot = |x: &[f64], row: &[f32]| x.iter().zip(row).map(|(x, &weight)| x * f64::from(weight)).sum();
    x.chunks_exact(depth).flat_map(|x| weight.chunks_exact(depth).map(move |row| dot(x, row))).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// The root mean square error of `got`, relative to the root mean square of `expected`.
fn error(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let off: f64 = got.iter().zip(expected).map(|(&got, expected)| (f64::from(got) - expected).powi(2)).sum();
    (off / expected.iter().map(|value| value * value).sum::<f64>()).sqrt()
}

fn part(values: &[f32], columns: usize) -> Part {
    Part { weight: in_memory(values, columns), bias: None }
}

/// The product of each kind of operand: of rows, of their norms, of gates.
fn products(
    operations: &mut CpuOperations,
    (x, depth): (&[f32], usize),
    weight: &[f32],
    gates: &[f32],
    precision: Precision,
) -> [Vec<f32>; 3] {
    let matrix = operations.matrix(vec![part(weight, depth)], precision).unwrap();
    let x = operations.tensor(x, depth).unwrap();
    let norm = Norm { kind: NormKind::Rms, weight: vec![1.0; depth], bias: None, epsilon: 0.0 };
    // Multiplies with weights of one column, which serve as gates and as gated values.
    let one = operations.tensor(&[1.0], 1).unwrap();
    let one = operations.operand(&one, Precision::High).unwrap();
    let [gate, up] = [(); 2].map(|()| part(gates, 1));
    let gate_up = operations.gated_matrix(gate, up, Precision::High).unwrap();
    let plain = operations.operand(&x, precision).unwrap();
    let normed = operations.norm_operand(&x, &norm, precision).unwrap();
    let gated = operations.gated(&one, &gate_up, Activation::Silu, precision).unwrap();
    [plain, normed, gated].map(|operand| {
        let product = operations.linear(&operand, &matrix).unwrap();
        operations.values(&product).unwrap().into_owned()
    })
}

#[test]
fn rotated_operands_give_the_same_product_and_lose_less() {
    let seed = rand::random();
    let mut rng = StdRng::seed_from_u64(seed);
    let odd: Vec<usize> = (0..6).map(|_| 2 * rng.random_range(0..300) + 1).collect();
    let even: Vec<usize> = (0..6).map(|_| 64 * rng.random_range(1..20)).collect();
    for depth in [3072, 70].into_iter().chain(odd).chain(even) {
        // There are so many products that one near zero does not decide: the error is relative to all of
        // them.
        let (rows, outputs) = (rng.random_range(8..40), rng.random_range(100..170));
        let x = with_outliers(&mut rng, (rows, depth), 100.0);
        // The gates gate themselves, so that the values are squares.
        let gates = with_outliers(&mut rng, (1, depth), 10.0);
        let weight: Vec<f32> = (0..outputs * depth).map(|_| rng.random_range(-1.0..1.0)).collect();
        let normed = x.chunks_exact(depth).flat_map(|row| {
            let mean = wide(row).iter().map(|value| value * value).sum::<f64>() / depth as f64;
            wide(row).into_iter().map(move |value| value / mean.sqrt())
        });
        let gated = wide(&gates).into_iter().map(|gate| gate / (1.0 + (-gate).exp()) * gate);
        let expected = [wide(&x), normed.collect(), gated.collect()].map(|x| product(&x, &weight, depth));
        for set in InstructionSet::available() {
            for dtype in [DType::Float32, DType::BFloat16, DType::Int8] {
                let mut operations = CpuOperations::start(2, set, dtype).unwrap();
                let mut of = |precision| products(&mut operations, (&x, depth), &weight, &gates, precision);
                let (low, spread) = (of(Precision::Low), of(Precision::Spread));
                let what = format!("{set} {dtype} {rows}x{depth}x{outputs}, seed {seed}");
                if dtype != DType::Int8 || elementwise::stages(depth) == 0 {
                    assert_eq!(spread, low, "{what}: nothing is rotated");
                    continue;
                }
                assert_ne!(spread, low, "{what}: rotated");
                for ((low, spread), expected) in low.iter().zip(&spread).zip(&expected) {
                    let (low, spread) = (error(low, expected), error(spread, expected));
                    assert!(spread < 0.05, "{what}: {spread}");
                    if depth == 3072 {
                        assert!(spread < low / 2.0, "{what}: {spread} is not much less than {low}");
                    }
                }
            }
        }
    }
}
