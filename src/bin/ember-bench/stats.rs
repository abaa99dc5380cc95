//! Median, least and greatest of repeated measurements.

/// Measurements of one quantity, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// From the measurements in the order in which they were taken.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "no measurement");
        Samples(values)
    }

    /// In the order in which they were taken.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The middle one, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[half]
        } else {
            (sorted[half - 1] + sorted[half]) / 2.0
        }
    }

    /// The least.
    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The greatest.
    pub fn greatest(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_and_even() {
        let odd = Samples::new(vec![3.0, 1.0, 7.0]);
        assert_eq!((odd.least(), odd.median(), odd.greatest()), (1.0, 3.0, 7.0));
        let even = Samples::new(vec![4.0, 1.0, 2.0, 8.0]);
        assert_eq!(even.median(), 3.0);
        assert_eq!(even.values(), [4.0, 1.0, 2.0, 8.0]);
    }
}
