//! Philox4x32-10, a counter-based generator: the n-th number needs none of the numbers before it.
//!
//! J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3.
//! SC 2011.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of Philox4x32 on this counter with this key.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(KEY_STEPS[0]),
            key[1].wrapping_add(KEY_STEPS[1]),
        ];
    }
    counter
}

/// Bits of a draw.
pub const BITS: u32 = 53;

/// The number below 2^[`BITS`] that belongs to this seed and position: key = (low, high half of the
/// seed), counter = (low, high half of the position, 0, 0); the upper bits of the first output word
/// above the second.
pub fn bits(seed: u64, position: u64) -> u64 {
    let counter = [position as u32, (position >> 32) as u32, 0, 0];
    let out = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
    (u64::from(out[0]) << 32 | u64::from(out[1])) >> (64 - BITS)
}

/// The same as a number in [0, 1).
#[cfg(test)]
pub fn uniform(seed: u64, position: u64) -> f64 {
    bits(seed, position) as f64 * (1.0 / (1u64 << BITS) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the paper's authors publish with Random123.
    #[test]
    fn philox_matches_published_vectors() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_stays_below_one_and_spreads() {
        let mut bins = [0u32; 16];
        for position in 0..16_000 {
            let u = uniform(7, position);
            assert!((0.0..1.0).contains(&u));
            bins[(u * 16.0) as usize] += 1;
        }
        // 15 degrees of freedom: 45 is beyond the 1 in 10,000 of a fair generator.
        let chi2: f64 = bins
            .iter()
            .map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0)
            .sum();
        assert!(chi2 < 45.0, "chi-square {chi2}");
    }
}
