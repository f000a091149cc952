//! Median and spread of numbers.

use serde::Serialize;

/// Median, quartiles and extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub q1: f64,
    pub q3: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Returns the spread of one number.
    pub fn single(value: f64) -> Self {
        Self { median: value, q1: value, q3: value, min: value, max: value }
    }

    /// Returns the spread of some numbers; `None` if there are none or one is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            q1: quantile(&sorted, 0.25)?,
            q3: quantile(&sorted, 0.75)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

/// Computes a quantile by interpolation.
fn quantile(sorted: &[f64], quantile: f64) -> Option<f64> {
    let place = quantile * sorted.len().checked_sub(1)? as f64;
    let below = *sorted.get(place.floor() as usize)?;
    let above = *sorted.get(place.ceil() as usize)?;
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).unwrap().median, 2.0);
        let spread = Spread::of(&[4.0, 1.0, 2.0, 3.0, 5.0]).unwrap();
        assert_eq!((spread.q1, spread.q3, spread.min, spread.max), (2.0, 4.0, 1.0, 5.0));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
    }
}
