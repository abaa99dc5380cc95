//! Weights: repacking, decoding, embedding, and the products of a few rows.

use crate::common::tiny::Random;
use crate::gpu::*;
use emberlm::backend::cuda::driver::Buffer;
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::launch::matrix::{
    self, Inputs, Matrix, MatrixSegment, groups, largest_args, matrix_bytes, repack_args,
};
use emberlm::backend::cuda::launch::record::{RecordType, codebooks};
use emberlm::quant::{TensorType, dequantize_row};

pub fn tests(tests: &mut Tests) {
    for ty in TensorType::ALL {
        let name = ty.name();
        tests.push((
            format!("repack::{name}"),
            Box::new(move || repack_is_exact(ty)),
        ));
        tests.push((
            format!("matvec::{name}"),
            Box::new(move || matvec_is_right(ty)),
        ));
    }
    tests.push(("matvec::fused".into(), Box::new(fused_types)));
}

/// A matrix of random blocks on the device, and its exact values.
pub struct TestMatrix {
    pub matrix: Matrix,
    pub values: Vec<f32>,
    _memory: Vec<Buffer>,
}

impl TestMatrix {
    /// Gives a matrix of one type other blocks.
    pub fn fill(&mut self, ty: TensorType, raw: &[u8]) {
        let row_len = self.values.len() / self.matrix.rows as usize;
        let mut row = vec![0.0; row_len];
        self.values.clear();
        for r in raw.chunks(ty.row_bytes(row_len).unwrap()) {
            dequantize_row(ty, r, &mut row);
            self.values.extend(&row);
        }
        let (device, books) = (upload(raw), upload(&codebooks()));
        let (segment, n_groups) = (&self.matrix.segments[0], self.matrix.groups);
        self._memory[1].write(0, &[0f32]).unwrap();
        let (at, rows) = (device.address(), self.matrix.rows);
        let args = repack_args(segment, ty, books.address(), n_groups, at, row_len, 0, rows);
        let bound = largest_args(segment, n_groups, 0, rows);
        with_stream(|stream| unsafe {
            kernels().repack(stream, &args).unwrap();
            kernels().largest_weight(stream, &bound).unwrap();
        });
    }
}

/// Matrices above each other: (type, rows) of each; with a bias if asked for.
pub fn test_matrix(
    parts: &[(TensorType, usize)],
    row_len: usize,
    bias: bool,
    seed: u64,
) -> (TestMatrix, Vec<f32>) {
    let mut random = Random::new(seed, "matrix");
    let n_groups = groups(row_len);
    let mut t = TestMatrix {
        matrix: Matrix {
            groups: n_groups,
            ..Matrix::default()
        },
        values: Vec::new(),
        _memory: Vec::new(),
    };
    for &(ty, rows) in parts {
        let raw = random_blocks(&mut random, ty, rows, row_len);
        let mut row = vec![0.0; row_len];
        for r in raw.chunks(ty.row_bytes(row_len).unwrap()) {
            dequantize_row(ty, r, &mut row);
            t.values.extend(&row);
        }
        let record = RecordType::of(ty);
        let bytes = matrix_bytes(record, n_groups, rows as u32);
        let (memory, largest) = (poisoned(bytes as usize), upload(&[0f32]));
        let segment = MatrixSegment {
            address: memory.address(),
            ty: record,
            rows: rows as u32,
            out_offset: t.matrix.rows,
            bytes,
            largest: largest.address(),
        };
        let device_raw = upload(&raw);
        let books = upload(&codebooks());
        // In two pieces, as an upload does it.
        let cut = rows / 3;
        with_stream(|stream| {
            for (first, n) in [(0, cut), (cut, rows - cut)] {
                if n > 0 {
                    let at = device_raw.address() + (first * ty.row_bytes(row_len).unwrap()) as u64;
                    let args = repack_args(
                        &segment,
                        ty,
                        books.address(),
                        n_groups,
                        at,
                        row_len,
                        first as u32,
                        n as u32,
                    );
                    let bound = largest_args(&segment, n_groups, first as u32, n as u32);
                    unsafe {
                        kernels().repack(stream, &args).unwrap();
                        kernels().largest_weight(stream, &bound).unwrap();
                    }
                }
            }
        });
        t.matrix.rows += rows as u32;
        t.matrix.segments.push(segment);
        t._memory.extend([memory, largest]);
    }
    let mut biases = Vec::new();
    if bias {
        biases = random_floats(&mut random, t.matrix.rows as usize);
        let memory = upload(&biases);
        t.matrix.bias = memory.address();
        t._memory.push(memory);
    }
    (t, biases)
}

/// Row lengths that a type allows, nice and odd.
pub fn row_lengths(ty: TensorType) -> Vec<usize> {
    match ty.block_len() {
        256 => vec![256, 512, 1280, 1536, 2048, 4096, 8960],
        64 => vec![64, 192, 896, 1024, 1088, 2048, 4864],
        32 => vec![32, 96, 896, 1024, 1056, 2048, 4864],
        _ => vec![1, 7, 33, 100, 512, 896, 2048, 3001],
    }
}

fn repack_is_exact(ty: TensorType) {
    for row_len in row_lengths(ty) {
        for rows in [1, 5, 67] {
            let (t, _) = test_matrix(&[(ty, rows)], row_len, false, 1);
            let width = t.matrix.groups as usize * 32;
            let segment = &t.matrix.segments[0];
            let check = |got: &[f32], rows: &[usize], what: &str| {
                for (i, &row) in rows.iter().enumerate() {
                    let got = &got[i * width..(i + 1) * width];
                    let want = &t.values[row * row_len..(row + 1) * row_len];
                    for (j, (g, w)) in got.iter().zip(want).enumerate() {
                        assert_eq!(
                            g.to_bits(),
                            w.to_bits(),
                            "{what} {} {row_len}: row {row} element {j}: {g} {w}",
                            ty.name()
                        );
                    }
                    assert!(got[row_len..].iter().all(|v| *v == 0.0), "{what}: padding");
                }
            };
            let out = poisoned(rows * width * 4);
            let unpack = args::Unpack {
                matrix: segment.address,
                out: out.address(),
                ty: RecordType::of(ty).number(),
                groups: t.matrix.groups,
                matrix_rows: rows as u32,
                first_row: 0,
                rows: rows as u32,
                to_f32: 1,
                ..Default::default()
            };
            with_stream(|stream| unsafe { kernels().unpack(stream, &unpack).unwrap() });
            check(
                &download(&out, rows * width),
                &(0..rows).collect::<Vec<_>>(),
                "unpack",
            );

            let tile_bytes = matrix::tiled_bytes(rows as u32, t.matrix.groups) as usize;
            let half = poisoned(tile_bytes);
            let unpack = args::Unpack {
                out: half.address(),
                to_f32: 0,
                ..unpack
            };
            with_stream(|stream| unsafe { kernels().unpack(stream, &unpack).unwrap() });
            let got = from_tiles(&download::<u16>(&half, tile_bytes / 2), rows, width);
            for r in 0..rows {
                for i in 0..row_len {
                    let want =
                        half::f16::from_f32(t.values[r * row_len + i].clamp(-65504.0, 65504.0));
                    assert_eq!(
                        got[r * width + i],
                        want.to_bits(),
                        "f16 {} row {r} element {i}",
                        ty.name()
                    );
                }
            }

            let tokens = [rows as u32 - 1, 0, rows as u32 / 2];
            let device_tokens = upload(&tokens);
            let out = poisoned(3 * width * 4);
            let session = upload(&[args::Session {
                position: rows.saturating_sub(3) as u32,
                token: 1,
                ..Default::default()
            }]);
            let table = upload(&[session.address()]);
            let embed = args::Embed {
                embedding: args::Table {
                    matrix: segment.address,
                    ty: RecordType::of(ty).number(),
                    rows: rows as u32,
                },
                sessions: table.address(),
                tokens: device_tokens.address(),
                out: out.address(),
                groups: t.matrix.groups,
                scale: 1.0,
                ..Default::default()
            };
            with_stream(|stream| unsafe { kernels().embed(stream, &embed, 3).unwrap() });
            let plain: Vec<f32> = download(&out, 3 * width);
            check(&plain, &tokens.map(|t| t as usize), "embed");
            // Scaled, with the rows of positions added: of the session's and those that follow, or
            // of the session's alone. Beyond the last row, the first one stands in.
            let with_positions = args::Embed {
                positions: embed.embedding,
                scale: 0.5,
                ..embed
            };
            let of_sessions = args::Embed {
                tokens: 0,
                ..with_positions
            };
            // Of whole texts, whose positions and kinds are said.
            let listed = upload(&[0u32, 2, 1]);
            let of_texts = args::Embed {
                kinds: embed.embedding,
                text_positions: listed.address(),
                text_kinds: listed.address() + 4,
                ..with_positions
            };
            let kinds_alone = args::Embed {
                positions: args::Table::default(),
                ..of_texts
            };
            for (embed, has_positions) in [(of_texts, true), (kinds_alone, false)] {
                with_stream(|stream| unsafe { kernels().embed(stream, &embed, 2).unwrap() });
                let got: Vec<f32> = download(&out, 2 * width);
                let inside = |row: usize| if row < rows { row } else { 0 };
                for (n, (position, kind)) in [(0, 2), (2, 1)].into_iter().enumerate() {
                    for i in 0..row_len {
                        let at = |row: usize| t.values[inside(row) * row_len + i];
                        let mut want = 0.5 * at(tokens[n] as usize);
                        if has_positions {
                            want += at(position);
                        }
                        want += at(kind);
                        assert_eq!(got[n * width + i], want, "{} {rows} {n} {i}", ty.name());
                    }
                }
            }
            let value = |row: usize, i: usize| {
                if i < row_len {
                    t.values[row * row_len + i]
                } else {
                    0.0
                }
            };
            for (embed, rows_of) in [
                (
                    with_positions,
                    vec![(tokens[0], 0), (tokens[1], 1), (tokens[2], 2)],
                ),
                (of_sessions, vec![(1, 0)]),
            ] {
                let count = rows_of.len();
                with_stream(|stream| unsafe {
                    kernels().embed(stream, &embed, count as u32).unwrap()
                });
                let got: Vec<f32> = download(&out, count * width);
                for (n, (token, at)) in rows_of.into_iter().enumerate() {
                    let at = rows.saturating_sub(3) + at;
                    let position = if at < rows { at } else { 0 };
                    let token = if (token as usize) < rows { token } else { 0 };
                    for i in 0..width {
                        let want = 0.5 * value(token as usize, i) + value(position, i);
                        assert_eq!(
                            got[n * width + i],
                            want,
                            "{} row {n} element {i}",
                            ty.name()
                        );
                    }
                }
            }
        }
    }
}

/// Input rows on the device in the forms that products read, made by the kernel under test
/// elsewhere, and the values that the int8 form stands for.
pub struct TestInput {
    pub inputs: Inputs,
    pub x: Vec<f32>,
    pub rounded: Vec<f32>,
    _memory: [Buffer; 4],
}

pub fn test_input(rows: usize, row_len: usize, seed: u64) -> TestInput {
    let mut random = Random::new(seed, "input");
    let n_groups = groups(row_len) as usize;
    let width = n_groups * 32;
    let x = random_floats(&mut random, rows * row_len);
    let device = upload(&x);
    let q8 = poisoned(rows * width);
    let scale = poisoned(rows * n_groups * 4);
    let f32 = poisoned(rows * width * 4);
    let quantize_input = args::QuantizeInput {
        x: device.address(),
        q8: q8.address(),
        q8_scale: scale.address(),
        f32: f32.address(),
        x_stride: row_len as u32,
        len: row_len as u32,
        groups: n_groups as u32,
        source: args::Source::Copy as u32,
        ..Default::default()
    };
    with_stream(|stream| unsafe {
        kernels()
            .quantize_input(stream, &quantize_input, rows as u32)
            .unwrap()
    });
    let q: Vec<i8> = download(&q8, rows * width);
    let d: Vec<f32> = download(&scale, rows * n_groups);
    let plain: Vec<f32> = download(&f32, rows * width);
    let mut rounded = Vec::new();
    for r in 0..rows {
        for i in 0..width {
            let value = f32::from(q[r * width + i]) * d[(r * width + i) / 32];
            let exact = if i < row_len { x[r * row_len + i] } else { 0.0 };
            assert_eq!(
                plain[r * width + i],
                exact,
                "f32 form of row {r} element {i}"
            );
            assert!(
                (value - exact).abs() <= d[(r * width + i) / 32] * 0.501,
                "int8 form of row {r} element {i}"
            );
            if i < row_len {
                rounded.push(value);
            }
        }
    }
    TestInput {
        inputs: Inputs {
            q8: q8.address(),
            q8_scale: scale.address(),
            f32: f32.address(),
            ..Inputs::default()
        },
        x,
        rounded,
        _memory: [device, q8, scale, f32],
    }
}

/// The product in f64 of each input row.
pub fn product(values: &[f32], x: &[f32], row_len: usize, bias: &[f32]) -> Vec<f64> {
    x.chunks(row_len)
        .flat_map(|x| {
            values.chunks(row_len).enumerate().map(move |(r, w)| {
                let sum: f64 = w
                    .iter()
                    .zip(x)
                    .map(|(w, x)| f64::from(*w) * f64::from(*x))
                    .sum();
                sum + bias.get(r).map_or(0.0, |b| f64::from(*b))
            })
        })
        .collect()
}

fn run_matvec(
    t: &TestMatrix,
    input: &TestInput,
    batch: usize,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let rows = t.matrix.rows as usize;
    // A stride of its own; what is between the rows must stay untouched.
    let stride = rows + 3;
    let padded = residual.map(|r| {
        let mut padded = vec![f32::NAN; batch * stride];
        for b in 0..batch {
            padded[b * stride..b * stride + rows].copy_from_slice(&r[b * rows..(b + 1) * rows]);
        }
        upload(&padded)
    });
    // The residual may be the output or not.
    let other = poisoned(batch * stride * 4);
    let out = padded
        .as_ref()
        .filter(|_| batch.is_multiple_of(2))
        .unwrap_or(&other);
    with_stream(|stream| unsafe {
        kernels()
            .matvec(
                stream,
                &t.matrix,
                &input.inputs,
                out.address(),
                stride as u32,
                padded.as_ref().map_or(0, |p| p.address()),
                batch as u32,
            )
            .unwrap()
    });
    let got: Vec<f32> = download(out, batch * stride);
    let mut result = Vec::new();
    for row in got.chunks(stride) {
        assert!(
            row[rows..].iter().all(|v| v.is_nan()),
            "written beyond the row"
        );
        result.extend(&row[..rows]);
    }
    result
}

fn check_matvec(parts: &[(TensorType, usize)], row_len: usize, batches: &[usize], bias: bool) {
    let (t, biases) = test_matrix(parts, row_len, bias, 3);
    let most = batches.iter().copied().max().unwrap();
    let input = test_input(most, row_len, 4);
    let rows = t.matrix.rows as usize;
    let names: Vec<_> = parts
        .iter()
        .map(|(t, n)| format!("{} x {n}", t.name()))
        .collect();
    // What each segment reads: int8 for quantized types.
    let mut want = vec![0.0; most * rows];
    let mut first = 0;
    for &(ty, n) in parts {
        let x = if ty.is_float() {
            &input.x
        } else {
            &input.rounded
        };
        let bias = biases.get(first..first + n).unwrap_or(&[]);
        let part = product(
            &t.values[first * row_len..(first + n) * row_len],
            x,
            row_len,
            bias,
        );
        for b in 0..most {
            want[b * rows + first..b * rows + first + n].copy_from_slice(&part[b * n..(b + 1) * n]);
        }
        first += n;
    }
    let mut alone: Option<Vec<f32>> = None;
    for &batch in batches {
        let got = run_matvec(&t, &input, batch, None);
        let error = relative_error(&got, &want[..batch * rows]);
        assert!(
            error < 2e-6,
            "{names:?} row_len {row_len} batch {batch}: error {error}"
        );
        let first: Vec<f32> = got[..rows].to_vec();
        let alone = alone.get_or_insert(first.clone());
        assert_eq!(
            *alone, first,
            "{names:?} row_len {row_len} batch {batch}: bits depend on the batch"
        );
    }
    let residual = random_floats(&mut Random::new(5, "residual"), rows);
    let got = run_matvec(&t, &input, 1, Some(&residual));
    for (r, (g, a)) in got.iter().zip(alone.unwrap()).enumerate() {
        assert_eq!(*g, a + residual[r], "residual of row {r}");
    }
}

fn matvec_is_right(ty: TensorType) {
    let lengths = row_lengths(ty);
    for (i, &row_len) in lengths.iter().enumerate() {
        let rows = [1, 3, 127, 300, 1029][i % 5];
        check_matvec(
            &[(ty, rows)],
            row_len,
            &[1, 2, 3, 4, 5, 8, 12, 17, 32],
            i % 2 == 1,
        );
    }
    // More rows than one round of shared memory holds.
    check_matvec(&[(ty, 40_003)], 256, &[1, 4], true);
}

fn fused_types() {
    use TensorType as T;
    check_matvec(&[(T::Q4K, 96), (T::Q6K, 33)], 1024, &[1, 4, 6], true);
    check_matvec(&[(T::Q4K, 4096), (T::Q6K, 1024)], 4096, &[1, 4], false);
    check_matvec(
        &[(T::Q8_0, 64), (T::F16, 5), (T::Q4_0, 31)],
        96,
        &[1, 3],
        true,
    );
    check_matvec(
        &[(T::Q6K, 64), (T::Q4K, 100), (T::F32, 1)],
        512,
        &[1, 2],
        true,
    );
}
