//! Pools the states of a text's tokens into one vector, for backends that have these states in main memory.

use crate::Pool;

/// The pooled state of a text. `states` has `hidden` values for each token. `None` for SPLADE, which does not
/// pool states, and for a text without tokens.
#[must_use]
pub fn pooled(pool: Pool, states: &[f32], hidden: usize) -> Option<Vec<f32>> {
    if hidden == 0 {
        return None;
    }
    let mut rows = states.chunks_exact(hidden);
    match pool {
        Pool::Cls => rows.next().map(<[f32]>::to_vec),
        Pool::LastToken => rows.next_back().map(<[f32]>::to_vec),
        Pool::Mean => (rows.len() > 0).then(|| mean(rows, hidden)),
        Pool::Splade => None,
    }
}

/// The mean of `states`: at least one slice, `hidden` values each. Summed in double precision, because a text
/// may have tens of thousands of tokens.
#[must_use]
pub fn mean<'a>(states: impl IntoIterator<Item = &'a [f32]>, hidden: usize) -> Vec<f32> {
    let (mut sums, mut count) = (vec![0.0_f64; hidden], 0_u32);
    for state in states {
        count += 1;
        sums.iter_mut().zip(state).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    sums.into_iter().map(|sum| (sum / f64::from(count)) as f32).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn the_mean_of_one_state_is_that_state_and_sums_do_not_drown() {
        assert_eq!(mean([&[0.1_f32, -3.0][..]], 2), [0.1, -3.0]);
        assert_eq!(mean([&[1.0_f32, 2.0][..], &[2.0, -2.0]], 2), [1.5, 0.0]);
        // In single precision, the sum would stop growing at 2^24.
        let states = [&[16_777_216.0_f32][..], &[1.0], &[1.0], &[1.0]];
        assert_eq!(mean(states, 1), [4_194_304.8_f32]);
    }

    #[test]
    fn random_states_are_pooled_as_value_by_value() {
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..200 {
            let (tokens, hidden) = (random.random_range(1..30), random.random_range(1..13));
            let states: Vec<f32> = (0..tokens * hidden).map(|_| random.random_range(-9.0..9.0)).collect();
            for column in 0..hidden {
                let values = || (0..tokens).map(|token| states[token * hidden + column]);
                let sum: f64 = values().map(f64::from).sum();
                let expected = [
                    (Pool::Cls, values().next().unwrap()),
                    (Pool::LastToken, values().next_back().unwrap()),
                    (Pool::Mean, (sum / tokens as f64) as f32),
                ];
                for (pool, value) in expected {
                    assert_eq!(
                        pooled(pool, &states, hidden).unwrap()[column].to_bits(),
                        value.to_bits(),
                        "{pool}"
                    );
                }
            }
            assert_eq!(pooled(Pool::Splade, &states, hidden), None);
        }
        assert_eq!(
            [Pool::Cls, Pool::Mean, Pool::LastToken].map(|pool| pooled(pool, &[], 4)),
            [None, None, None]
        );
        assert_eq!(pooled(Pool::Mean, &[1.0], 0), None);
    }
}
