//! The CPU's matrix products: against dequantized weights in double precision, and bit for bit
//! against each other over instruction sets, groupings of tokens and ranges of rows.

use crate::common::quantize::f16_offsets;
use emberlm::backend::cpu::matmul::{Activations, Encodings, Isa, Matrix, Scratch, View};
use emberlm::quant::codebook::IQ1M;
use emberlm::quant::{Codebook, TensorType, dequantize_row};
use std::ops::Range;
use std::slice::from_ref;

/// Xorshift; the tests need no better.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From -1 to 1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Random blocks with scales of moderate size.
fn weights(ty: TensorType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let len = rows * ty.row_bytes(cols).expect("whole blocks");
    let float = |random: &mut Random| random.float() * 0.05;
    match ty {
        TensorType::F32 => (0..len / 4)
            .flat_map(|_| float(random).to_le_bytes())
            .collect(),
        TensorType::F16 => (0..len / 2)
            .flat_map(|_| half::f16::from_f32(float(random)).to_le_bytes())
            .collect(),
        TensorType::BF16 => (0..len / 2)
            .flat_map(|_| half::bf16::from_f32(float(random)).to_le_bytes())
            .collect(),
        _ => {
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                for at in f16_offsets(ty) {
                    let value = half::f16::from_f32(float(random)).to_le_bytes();
                    block[*at..at + 2].copy_from_slice(&value);
                }
                if ty == TensorType::MXFP4 {
                    block[0] = 110 + block[0] % 16;
                }
                if ty == TensorType::NVFP4 {
                    block[..4].iter_mut().for_each(|scale| *scale %= 48);
                }
                if ty == TensorType::IQ1M {
                    let value = half::f16::from_f32(float(random));
                    IQ1M::set_scale_bits(block, value.to_bits());
                }
            }
            bytes
        }
    }
}

/// A matrix and tokens to multiply with it.
struct Case {
    ty: TensorType,
    rows: usize,
    cols: usize,
    tokens: usize,
    bytes: Vec<u8>,
    x: Vec<Vec<f32>>,
}

impl Case {
    fn new(ty: TensorType, rows: usize, cols: usize, tokens: usize) -> Case {
        let seed = 1 + cols as u64 * 7919 + rows as u64 * 104_729 + u64::from(ty.gguf_id());
        let mut random = Random(seed);
        let bytes = weights(ty, rows, cols, &mut random);
        let x = (0..tokens)
            .map(|t| {
                (0..cols)
                    .map(|k| match (t % 5, k / 32 % 3) {
                        // A group of zeros, and groups of very different size.
                        (3, 1) => 0.0,
                        (4, 2) => random.float() * 1e4,
                        _ => random.float(),
                    })
                    .collect()
            })
            .collect();
        Case {
            ty,
            rows,
            cols,
            tokens,
            bytes,
            x,
        }
    }

    fn activations(&self, isa: Isa) -> Activations {
        let enc = Encodings::for_type(self.ty);
        // Longer rows and more tokens than needed: strides are not the sizes.
        let x = Activations::new(self.tokens + 1, self.cols + 40, enc).expect("memory");
        for (t, row) in self.x.iter().enumerate() {
            // SAFETY: one thread.
            unsafe { x.set_row(isa, t, row, enc) }
        }
        x
    }

    fn view(&self, isa: Isa) -> View<'_> {
        View::new(self.ty, self.rows, self.cols, &self.bytes, isa).expect("sizes fit")
    }

    /// The product, cut into these ranges, in a poisoned output with a stride of `rows + 3`.
    fn product(&self, isa: Isa, tokens: &[Range<usize>], rows: &[Range<usize>]) -> Vec<f32> {
        let x = self.activations(isa);
        let stride = self.rows + 3;
        let mut out = vec![f32::NAN; self.tokens * stride + 40];
        let mut scratch = Scratch::new(self.cols).expect("memory");
        for t in tokens {
            for r in rows {
                // SAFETY: `out` holds `tokens` rows of `stride`, one thread.
                unsafe {
                    self.view(isa).mul(
                        &x,
                        t.clone(),
                        r.clone(),
                        out.as_mut_ptr(),
                        stride,
                        &mut scratch,
                    )
                }
            }
        }
        out
    }

    fn whole(&self, isa: Isa) -> Vec<f32> {
        let (tokens, rows) = (0..self.tokens, 0..self.rows);
        self.product(isa, from_ref(&tokens), from_ref(&rows))
    }

    fn name(&self) -> String {
        let Case {
            ty,
            rows,
            cols,
            tokens,
            ..
        } = self;
        format!("{} {rows} x {cols}, {tokens} tokens", ty.name())
    }
}

/// Asserts equal bits, and that what lies between the rows of the output is untouched.
fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.to_bits(), w.to_bits(), "{what}: element {i}: {g} {w}");
    }
}

fn columns(ty: TensorType) -> Vec<usize> {
    [32, 96, 256, 512, 768, 896, 1056]
        .into_iter()
        .filter(|c| c % ty.block_len() == 0)
        .collect()
}

#[test]
fn scalar_product_is_near_the_product_in_double_precision() {
    for ty in TensorType::ALL {
        for cols in columns(ty) {
            let case = Case::new(ty, 33, cols, 6);
            let out = case.whole(Isa::Scalar);
            let row_bytes = ty.row_bytes(cols).expect("whole blocks");
            let mut w = vec![0.0; cols];
            for r in 0..case.rows {
                dequantize_row(ty, &case.bytes[r * row_bytes..][..row_bytes], &mut w);
                for (t, x) in case.x.iter().enumerate() {
                    let (mut sum, mut size, mut bound) = (0f64, 0f64, 0f64);
                    for (w, x) in w.chunks(32).zip(x.chunks(32)) {
                        let a = x.iter().fold(0f32, |a, v| a.max(v.abs()));
                        for (w, x) in w.iter().zip(x) {
                            sum += f64::from(*w) * f64::from(*x);
                            size += f64::from(*w).abs() * f64::from(a);
                            bound += f64::from(*w).abs() * f64::from(a) / 127.0 * 0.5;
                        }
                    }
                    if Encodings::for_type(ty).float {
                        bound = 0.0;
                    }
                    // A minimum and the rest of the element cancel, their roundings do not.
                    let bound = bound * 1.001 + size * 1e-5 + 1e-4;
                    let got = f64::from(out[t * (case.rows + 3) + r]);
                    assert!(
                        (got - sum).abs() <= bound,
                        "{} row {r} token {t}: {got} {sum} +- {bound}",
                        case.name()
                    );
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for isa in Isa::available() {
        for ty in TensorType::ALL {
            for cols in columns(ty) {
                for rows in [1, 31, 33, 70] {
                    let mut case = Case::new(ty, rows, cols, 33);
                    let scalar = case.whole(Isa::Scalar);
                    for tokens in [33, 9, 8, 7, 6, 5, 4, 3, 2, 1] {
                        case.tokens = tokens;
                        case.x.truncate(tokens);
                        let got = case.whole(isa);
                        let n = tokens * (rows + 3);
                        assert_same(&got[..n], &scalar[..n], &format!("{isa:?} {}", case.name()));
                        assert!(got[n..].iter().all(|v| v.is_nan()), "wrote past the end");
                    }
                }
            }
        }
    }
}

#[test]
fn cutting_tokens_and_rows_does_not_change_the_bits() {
    for isa in Isa::available() {
        for ty in TensorType::ALL {
            let cols = match ty.block_len() {
                256 => 512,
                64 => 448,
                _ => 416,
            };
            let case = Case::new(ty, 101, cols, 40);
            let whole = case.whole(isa);
            let q = Matrix::ROW_QUANTUM;
            let rows = [0..q, q..2 * q, 2 * q..2 * q + 1, 2 * q + 1..101];
            let by_one: Vec<_> = (0..40).map(|t| t..t + 1).collect();
            for tokens in [vec![0..1, 1..40], vec![0..7, 7..20, 20..22, 22..40], by_one] {
                let got = case.product(isa, &tokens, &rows[..2]);
                let got2 = case.product(isa, &tokens, &rows);
                let what = format!("{isa:?} {}", case.name());
                assert_same(&got2, &whole, &what);
                for t in 0..40 {
                    for r in 0..104 {
                        let v = got[t * 104 + r];
                        if r < 2 * q {
                            assert_eq!(v.to_bits(), whole[t * 104 + r].to_bits(), "{what}");
                        } else {
                            assert!(v.is_nan(), "{what}: wrote row {r} of token {t}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_encodes_the_same() {
    // Edges of the encoding: ties, a tiny group, denormals, the largest number, -0.
    let mut x = vec![0f32; 512];
    x[0] = 127.0;
    for (i, v) in x[1..32].iter_mut().enumerate() {
        *v = i as f32 - 15.5;
    }
    x[32..64].fill(1e-38);
    x[64..96].fill(1e-31);
    x[96] = f32::MAX;
    x[97] = f32::MIN;
    x[128..160].fill(-0.0);
    x[160] = f32::MIN_POSITIVE / 4.0;
    let mut case = Case::new(TensorType::Q8_0, 40, 512, 1);
    case.x[0] = x;
    let scalar = case.whole(Isa::Scalar);
    assert!(scalar[..40].iter().all(|v| !v.is_nan()));
    for isa in Isa::available() {
        let got = case.whole(isa);
        assert_same(&got[..40], &scalar[..40], &format!("{isa:?}"));
    }
}

#[test]
fn a_value_that_is_no_number_spoils_its_token_alone() {
    for isa in Isa::available() {
        for ty in TensorType::ALL {
            for tokens in [3, 12] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut case = Case::new(ty, 35, 512, tokens);
                    let clean = case.whole(isa);
                    case.x[1][300] = bad;
                    let got = case.whole(isa);
                    for t in 0..tokens {
                        for r in 0..35 {
                            let (g, c) = (got[t * 38 + r], clean[t * 38 + r]);
                            if t == 1 {
                                assert!(!g.is_finite(), "{isa:?} {} row {r}", case.name());
                            } else {
                                assert_eq!(g.to_bits(), c.to_bits(), "{isa:?} {}", case.name());
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn any_bytes_are_weights() {
    for isa in Isa::available() {
        for ty in TensorType::ALL {
            for fill in [0u8, 0x7c, 0x7e, 0xff, 0x80] {
                let mut case = Case::new(ty, 33, 512, 9);
                case.bytes.fill(fill);
                let got = case.whole(isa);
                let scalar = case.whole(Isa::Scalar);
                for (g, s) in got.iter().zip(&scalar) {
                    let same = g.to_bits() == s.to_bits() || g.is_nan() && s.is_nan();
                    assert!(same, "{isa:?} {} of {fill:#x}: {g} {s}", case.name());
                }
            }
        }
    }
}

#[test]
fn a_view_needs_bytes_of_its_size() {
    let bytes = vec![0; 144 * 2];
    assert!(View::new(TensorType::Q4K, 2, 256, &bytes, Isa::Scalar).is_some());
    assert!(View::new(TensorType::Q4K, 3, 256, &bytes, Isa::Scalar).is_none());
    assert!(View::new(TensorType::Q4K, 2, 255, &bytes, Isa::Scalar).is_none());
    assert!(View::new(TensorType::Q4K, usize::MAX, 512, &bytes, Isa::Scalar).is_none());
}
