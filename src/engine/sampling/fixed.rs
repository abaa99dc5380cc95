//! Arithmetic that has the same bits on every device: an exponential function made of additions and
//! multiplications, and sums of probabilities as integers.

/// The integer that stands for 1: the weights of 2^23 tokens fit into 63 bits.
const ONE: f64 = (1u64 << 40) as f64;

/// Below this, `e^x` is less than 1 / [`ONE`].
const LEAST: f64 = -28.0;

/// `e^x` for x <= 0 as a multiple of 2^-40, rounded down.
pub fn weight(x: f64) -> u64 {
    if x < LEAST { 0 } else { (exp(x) * ONE) as u64 }
}

/// `-x e^x` for x <= 0 as a multiple of 2^-40, rounded down.
pub fn surprise(x: f64) -> u64 {
    if x < LEAST {
        0
    } else {
        (exp(x) * -x * ONE) as u64
    }
}

/// `x / y`, as doubles.
pub fn ratio(x: u64, y: u64) -> f64 {
    x as f64 / y as f64
}

/// The share `p`, 0 to 1, of a sum that is at least 1; at least 1 and at most the sum.
pub fn share(sum: u64, p: f32) -> u64 {
    ((sum as f64 * f64::from(p)).ceil() as u64).clamp(1, sum)
}

/// The natural logarithm of a sum of weights.
pub fn ln(sum: u64) -> f64 {
    (sum as f64 / ONE).ln()
}

/// `e^x` for x <= 0 to about 1e-10, from additions and multiplications alone, so that it has the
/// same bits on every platform (the C library's has not).
pub fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts (Cody and Waite).
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - n * 6.931_471_803_691_238e-1) - n * 1.908_214_929_270_587_7e-10;
    // Taylor series to the 9th power.
    const C: [f64; 8] = [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
    ];
    let series = C.iter().fold(0.0, |sum, c| sum * r + c);
    let e = 1.0 + r + r * r * series;
    // 2^n, n from -1022 to 0.
    e * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_accurate() {
        for i in 0..70_000 {
            let x = -f64::from(i) / 100.0;
            let error = (exp(x) - x.exp()).abs() / x.exp();
            assert!(error < 1e-9, "exp({x}) off by {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e300), 0.0);
    }

    #[test]
    fn weights_are_whole_shares() {
        assert_eq!(weight(0.0), 1 << 40);
        assert_eq!(weight(LEAST), 0);
        assert_eq!(weight(f64::NEG_INFINITY), 0);
        assert_eq!(surprise(0.0), 0);
        assert_eq!(surprise(f64::NEG_INFINITY), 0);
        assert!((ratio(surprise(-1.0), 1 << 40) - (-1f64).exp()).abs() < 1e-9);
        assert_eq!(share(10, 1e-9), 1);
        assert_eq!(share(10, 1.0), 10);
        assert_eq!(share(10, 0.5), 5);
        assert_eq!(ln(1 << 40), 0.0);
    }
}
