//! Confidence bound of a median.

/// Returns a lower bound of the median of the values' distribution, with a confidence of at least 95 % and
/// without assumptions about its shape. The k-th smallest of n values is below the median unless fewer than k
/// of them fall below it, which has the probability of fewer than k heads in n throws. `None` for fewer than
/// five values.
pub(super) fn median_at_least(values: &[f64]) -> Option<f64> {
    const DOUBT: f64 = 0.05;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let throws = sorted.len();
    let mut probability = 0.5_f64.powi(i32::try_from(throws).ok()?);
    let mut fewer = 0.0;
    let mut bound = None;
    for (heads, value) in sorted.into_iter().enumerate() {
        fewer += probability;
        if fewer > DOUBT {
            break;
        }
        bound = Some(value);
        probability *= (throws - heads) as f64 / (heads + 1) as f64;
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_binomial_table() {
        let values = |count: i32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(median_at_least(&values(4)), None);
        assert_eq!(median_at_least(&values(5)), Some(1.0));
        // P(fewer than 2 of 10) = 0.011, P(fewer than 3) = 0.055.
        assert_eq!(median_at_least(&values(10)), Some(2.0));
        // P(fewer than 4 of 15) = 0.018, P(fewer than 5) = 0.059.
        assert_eq!(median_at_least(&values(15)), Some(4.0));
    }
}
