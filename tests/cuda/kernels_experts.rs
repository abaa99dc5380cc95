//! Products of many rows with the matrices of their experts.

use crate::common::tiny::Random;
use crate::gpu::*;
use crate::kernels_weights::{TestMatrix, test_matrix};
use emberlm::backend::cuda::driver::Buffer;
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::launch::matrix::tiled_bytes;
use emberlm::quant::TensorType;

pub fn tests(tests: &mut Tests) {
    for ty in TensorType::ALL {
        let test = format!("matmul_experts::{}", ty.name());
        tests.push((test, Box::new(move || products_are_right(ty))));
    }
    tests.push(("matmul_experts::tiles".into(), Box::new(tiles_are_dealt)));
    tests.push(("matmul_experts::gated".into(), Box::new(gates_let_through)));
}

/// Numbers of rows of experts: none, one, and what is about a tile of either kernel, or several; in all no more than a chunk's tokens.
const ROWS: [usize; 12] = [3, 0, 1, 24, 25, 127, 128, 129, 191, 192, 193, 400];

/// Pairs of rows and experts, sorted on the device.
struct Pairs {
    n_experts: usize,
    n_used: usize,
    chosen: Vec<u32>,
    starts: Buffer,
    slots: Buffer,
    pairs: Buffer,
    tiles: Buffer,
    places: Buffer,
}

impl Pairs {
    fn sort(chosen: &[u32], n_experts: usize, n_used: usize) -> Pairs {
        let words = |n: usize| poisoned(n * 4);
        let tile_rows = kernels().expert_slots();
        let most = chosen.len() / tile_rows as usize + n_experts;
        let p = Pairs {
            n_experts,
            n_used,
            chosen: chosen.to_vec(),
            starts: words(n_experts + 1),
            slots: words(chosen.len()),
            pairs: words(chosen.len()),
            tiles: words(n_experts + 1),
            places: words(most * 4),
        };
        let on_device = upload(chosen);
        let sort = args::Sort {
            chosen: on_device.address(),
            starts: p.starts.address(),
            slots: p.slots.address(),
            pairs: p.pairs.address(),
            tiles: p.tiles.address(),
            places: p.places.address(),
            n_pairs: chosen.len() as u32,
            n_experts: n_experts as u32,
            tile_rows,
            padding: 0,
        };
        with_stream(|stream| unsafe {
            kernels().expert_sort(stream, &sort).unwrap();
            kernels().expert_tiles(stream, &sort).unwrap();
        });
        p
    }

    fn most_tiles(&self) -> u32 {
        self.chosen.len() as u32 / kernels().expert_slots() + self.n_experts as u32
    }

    /// The arguments of a product with rows of `k` elements of `matrix`.
    fn args(&self, matrix: &TestMatrix) -> args::ExpertMatmul {
        args::ExpertMatmul {
            pairs: self.pairs.address(),
            tiles: self.tiles.address(),
            places: self.places.address(),
            w: [matrix.matrix.segments[0].address, 0],
            bias: [matrix.matrix.bias, 0],
            pairs_per_input: self.n_used as u32,
            end_expert: self.n_experts as u32,
            n: matrix.matrix.rows / self.n_experts as u32,
            k: matrix.matrix.groups * 32,
            n_experts: self.n_experts as u32,
            ..Default::default()
        }
    }

    /// What the product has written, `[pairs][n]`, from rows of `stride` floats of which no more may be written.
    fn rows_of(&self, out: &Buffer, n: usize, stride: usize) -> Vec<f32> {
        let got: Vec<f32> = download(out, self.chosen.len() * stride);
        assert!(
            got.chunks(stride)
                .all(|r| r[n..].iter().all(|v| v.is_nan())),
            "written beyond the row"
        );
        let slots: Vec<u32> = download(&self.slots, self.chosen.len());
        slots
            .iter()
            .flat_map(|&s| got[s as usize * stride..][..n].to_vec())
            .collect()
    }
}

/// The experts of rows so that expert e is chosen `rows[e]` times, all one for a row, in no order.
fn scattered(rows: &[usize], random: &mut Random) -> Vec<u32> {
    let mut chosen: Vec<u32> = rows
        .iter()
        .enumerate()
        .flat_map(|(e, &n)| vec![e as u32; n])
        .collect();
    for i in (1..chosen.len()).rev() {
        chosen.swap(i, (random.bits() % (i as u64 + 1)) as usize);
    }
    chosen
}

/// `n_used` different experts for each of `rows` rows, in ascending order.
fn several(rows: usize, n_experts: usize, n_used: usize, random: &mut Random) -> Vec<u32> {
    let mut chosen = Vec::new();
    for _ in 0..rows {
        let mut all: Vec<u32> = (0..n_experts as u32).collect();
        for i in 0..n_used {
            let j = i + (random.bits() % (n_experts - i) as u64) as usize;
            all.swap(i, j);
        }
        all[..n_used].sort();
        chosen.extend(&all[..n_used]);
    }
    chosen
}

/// Rows of input: f16 on the device and scales of rows, and what both are together.
struct Inputs {
    x: Buffer,
    scale: Buffer,
    values: Vec<f64>,
}

fn inputs(rows: usize, k: usize, random: &mut Random) -> Inputs {
    let halves: Vec<half::f16> = random_floats(random, rows * k)
        .iter()
        .map(|v| half::f16::from_f32(*v))
        .collect();
    let scales: Vec<f32> = (0..rows).map(|i| [0.25, 1.0, 8.0][i % 3]).collect();
    let bits: Vec<u16> = halves.iter().map(|h| h.to_bits()).collect();
    let value = |(i, h): (usize, &half::f16)| f64::from(h.to_f32()) * f64::from(scales[i / k]);
    Inputs {
        x: upload(&to_tiles(&bits, k)),
        scale: upload(&scales),
        values: halves.iter().enumerate().map(value).collect(),
    }
}

/// The product of row `input` with row `row` of a matrix as the device has it: rounded to f16.
fn dot(inputs: &Inputs, input: usize, matrix: &[f64], row: usize, k: usize) -> f64 {
    let (x, w) = (&inputs.values[input * k..], &matrix[row * k..]);
    x[..k].iter().zip(&w[..k]).map(|(x, w)| x * w).sum()
}

fn rounded(values: &[f32]) -> Vec<f64> {
    let round = |v: &f32| f64::from(half::f16::from_f32(*v).to_f32());
    values.iter().map(round).collect()
}

/// Weights are rounded to f16 from f32 values that may be off in their last places, so a few are rounded the other way.
const BOUND: f64 = 1e-4;

fn products_are_right(ty: TensorType) {
    let unit = ty.block_len().max(32);
    let mut random = Random::new(ty.gguf_id().into(), "experts");
    let of_one = scattered(&ROWS, &mut random);
    for (chosen, n_experts, n_used, n, k) in [
        (of_one, ROWS.len(), 1, 100, unit * 3),
        (several(150, 5, 3, &mut random), 5, 3, 261, unit),
        (several(40, 9, 4, &mut random), 9, 4, 128, 1536),
        (several(2, 40, 7, &mut random), 40, 7, 8, 512),
    ] {
        let rows = chosen.len() / n_used;
        let (w, biases) = test_matrix(&[(ty, n_experts * n)], k, true, 3);
        let weights = rounded(&w.values);
        let x = inputs(rows, k, &mut random);
        let stride = n + 3;
        // Of the rows from `first` on.
        let product = |first: usize| {
            let p = Pairs::sort(&chosen[first * n_used..], n_experts, n_used);
            let out = poisoned(p.chosen.len() * stride * 4);
            let rest = inputs_from(&x, first, k);
            let args = args::ExpertMatmul {
                x: rest.x.address(),
                x_scale: rest.scale.address(),
                out: out.address(),
                out_stride: stride as u32,
                ..p.args(&w)
            };
            multiply(&p, &w, &args, ty.is_float());
            p.rows_of(&out, n, stride)
        };
        let got = product(0);
        let mut want = Vec::new();
        for (pair, &e) in chosen.iter().enumerate() {
            for j in 0..n {
                let row = e as usize * n + j;
                want.push(dot(&x, pair / n_used, &weights, row, k) + f64::from(biases[row]));
            }
        }
        let error = relative_error(&got, &want);
        let name = ty.name();
        println!("{name}, {rows} rows, {n_used} of {n_experts} experts, {n} x {k}: {error:.1e}");
        assert!(error < BOUND, "{name}, {n} x {k}: error {error}");
        // The last rows alone have the same bits, whatever tiles they are in.
        for first in [rows / 2, rows - 1] {
            let again = product(first);
            assert!(again == got[first * n_used * n..], "{name} from {first}");
        }
    }
}

/// The rows from `first` on as they are on the device.
fn inputs_from(x: &Inputs, first: usize, k: usize) -> Inputs {
    let rows = x.values.len() / k;
    let tiles: Vec<u16> = download(
        &x.x,
        tiled_bytes(rows as u32, k.div_ceil(32) as u32) as usize / 2,
    );
    let scales: Vec<f32> = download(&x.scale, rows);
    Inputs {
        x: upload(&to_tiles(&from_tiles(&tiles, rows, k)[first * k..], k)),
        scale: upload(&scales[first..]),
        values: Vec::new(),
    }
}

/// By records, or, of float types, by f16 with some experts at a time.
fn multiply(p: &Pairs, w: &TestMatrix, args: &args::ExpertMatmul, is_float: bool) {
    let segment = &w.matrix.segments[0];
    if !is_float {
        with_stream(|stream| unsafe {
            kernels()
                .expert_matmul_records(stream, segment.ty, args, p.most_tiles())
                .unwrap()
        });
        return;
    }
    let at_once = p.n_experts.div_ceil(3) as u32;
    let halves = poisoned(tiled_bytes(at_once * args.n, w.matrix.groups) as usize);
    for first in (0..args.n_experts).step_by(at_once as usize) {
        let experts = at_once.min(args.n_experts - first);
        let unpack = args::Unpack {
            matrix: segment.address,
            out: halves.address(),
            ty: segment.ty.number(),
            groups: w.matrix.groups,
            matrix_rows: segment.rows,
            first_row: first * args.n,
            rows: experts * args.n,
            expert_rows: args.n,
            starts: p.starts.address(),
            ..Default::default()
        };
        let matmul = args::ExpertMatmul {
            w: [halves.address(), 0],
            first_expert: first,
            end_expert: first + experts,
            ..*args
        };
        with_stream(|stream| unsafe {
            kernels().unpack(stream, &unpack).unwrap();
            kernels()
                .expert_matmul(stream, &matmul, p.most_tiles())
                .unwrap();
        });
    }
}

/// Every slot is in one tile of its expert, and no tile is longer than it may be.
fn tiles_are_dealt() {
    let mut random = Random::new(1, "tiles");
    let most = kernels().expert_slots();
    let all_to_one = vec![2u32; 2048];
    for (chosen, n_experts) in [
        (scattered(&ROWS, &mut random), ROWS.len()),
        (vec![4], 5),
        (all_to_one, 3),
        (several(2048, 31, 31, &mut random), 31),
        (several(700, 1024, 4, &mut random), 1024),
    ] {
        let p = Pairs::sort(&chosen, n_experts, 1);
        let starts: Vec<u32> = download(&p.starts, n_experts + 1);
        let tiles: Vec<u32> = download(&p.tiles, n_experts + 1);
        let count = tiles[n_experts];
        assert!(count <= p.most_tiles());
        let places: Vec<u32> = download(&p.places, count as usize * 4);
        let mut slot = 0;
        for (i, place) in places.chunks(4).enumerate() {
            let [expert, begin, rows] = [place[0], place[1], place[2]];
            let e = expert as usize;
            assert!((tiles[e]..tiles[e + 1]).contains(&(i as u32)), "tile {i}");
            assert_eq!(begin, slot, "tile {i}");
            assert!((1..=most).contains(&rows), "{rows} slots");
            assert!(begin >= starts[e] && begin + rows <= starts[e + 1]);
            slot += rows;
        }
        assert_eq!(slot as usize, chosen.len());
        // As few as there can be.
        let fewest = starts.windows(2).map(|s| (s[1] - s[0]).div_ceil(most));
        assert_eq!(count, fewest.sum::<u32>());
    }
}

/// A gate and what it lets through as one product, where the device has it: against the two, and against f64. Rows of input may
/// be those of slots.
fn gates_let_through() {
    if !kernels().has_gated() {
        return;
    }
    let silu = args::Activation::default();
    let clamped = args::Activation {
        kind: 3,
        alpha: 1.702,
        limit: 0.7,
    };
    let mut random = Random::new(5, "gates");
    for (ty, activation) in [
        (TensorType::Q4K, silu),
        (TensorType::MXFP4, clamped),
        (TensorType::Q6K, clamped),
        (TensorType::Q8_0, silu),
    ] {
        let unit = ty.block_len();
        for (chosen, n_experts, n_used, n, k) in [
            (scattered(&ROWS, &mut random), ROWS.len(), 1, 200, unit * 3),
            (several(90, 6, 4, &mut random), 6, 4, 72, unit * 2),
            (several(3, 6, 2, &mut random), 6, 2, 7, 512),
        ] {
            let rows = chosen.len() / n_used;
            let (gate, gate_bias) = test_matrix(&[(ty, n_experts * n)], k, true, 3);
            let (up, up_bias) = test_matrix(&[(ty, n_experts * n)], k, true, 4);
            let (gates, ups) = (rounded(&gate.values), rounded(&up.values));
            let p = Pairs::sort(&chosen, n_experts, n_used);
            let mut x = inputs(rows, k, &mut random);
            // Values of about one, so that gates are open by halves.
            let width: f64 = (0..rows.min(4))
                .map(|i| dot(&x, i, &gates, i, k).abs())
                .fold(1.0, f64::max);
            let smaller = 2.0f32.powi(-(width.log2().ceil() as i32));
            let scales: Vec<f32> = download::<f32>(&x.scale, rows)
                .iter()
                .map(|s| s * smaller)
                .collect();
            x.scale = upload(&scales);
            x.values.iter_mut().for_each(|v| *v *= f64::from(smaller));
            let mut want = Vec::new();
            for (pair, &e) in chosen.iter().enumerate() {
                for j in 0..n {
                    let row = e as usize * n + j;
                    let input = pair / n_used;
                    let mut g = dot(&x, input, &gates, row, k) + f64::from(gate_bias[row]);
                    let mut u = dot(&x, input, &ups, row, k) + f64::from(up_bias[row]);
                    let mut steepness = 1.0;
                    if activation.kind == 3 {
                        let limit = f64::from(activation.limit);
                        steepness = f64::from(activation.alpha);
                        g = g.min(limit);
                        u = u.clamp(-limit, limit) + 1.0;
                    }
                    want.push(g / (1.0 + (-steepness * g).exp()) * u);
                }
            }
            let stride = n + 2;
            let slots: Vec<u32> = download(&p.pairs, chosen.len());
            // The same rows, one for each slot.
            let of_slots: Vec<usize> = slots.iter().map(|p| *p as usize / n_used).collect();
            let tiles = download(
                &x.x,
                tiled_bytes(rows as u32, k.div_ceil(32) as u32) as usize / 2,
            );
            let halves: Vec<u16> = from_tiles(&tiles, rows, k);
            let repeated: Vec<u16> = of_slots
                .iter()
                .flat_map(|&i| halves[i * k..(i + 1) * k].to_vec())
                .collect();
            let repeated = upload(&to_tiles(&repeated, k));
            let repeated_scales: Vec<f32> = of_slots.iter().map(|&i| scales[i]).collect();
            let repeated_scales = upload(&repeated_scales);
            let run = |args: args::ExpertMatmul| {
                let out = poisoned(chosen.len() * stride * 4);
                let args = args::ExpertMatmul {
                    w: [
                        gate.matrix.segments[0].address,
                        up.matrix.segments[0].address,
                    ],
                    bias: [gate.matrix.bias, up.matrix.bias],
                    out: out.address(),
                    out_stride: stride as u32,
                    gated: 1,
                    activation,
                    ..args
                };
                multiply(&p, &gate, &args, false);
                p.rows_of(&out, n, stride)
            };
            let got = run(args::ExpertMatmul {
                x: x.x.address(),
                x_scale: x.scale.address(),
                ..p.args(&gate)
            });
            let by_slots = run(args::ExpertMatmul {
                x: repeated.address(),
                x_scale: repeated_scales.address(),
                pairs: 0,
                pairs_per_input: 1,
                ..p.args(&gate)
            });
            let error = relative_error(&got, &want);
            let name = ty.name();
            println!("{name}, {rows} rows, {n} x {k}, gated: {error:.1e}");
            assert!(error < BOUND, "{name}, {n} x {k}: error {error}");
            assert!(by_slots == got, "{name}: rows of slots");
        }
    }
}
