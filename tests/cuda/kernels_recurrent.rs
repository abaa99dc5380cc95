//! The kernels of mixers with a state of fixed size, against f64.

use crate::common::tiny::Random;
use crate::gpu::*;
use emberlm::backend::cuda::driver::Buffer;
use emberlm::backend::cuda::launch::args;

pub fn tests(tests: &mut Tests) {
    for case in CASES {
        let name = format!(
            "recurrent::{}_{}x{}_heads_{}_{}_width_{}",
            if case.delta { "delta" } else { "mamba" },
            case.rows,
            case.cols,
            case.heads,
            case.per_key,
            case.width
        );
        tests.push((name, Box::new(move || is_right(case))));
    }
    for case in SELECTIVE {
        let (channels, state_dim) = (case.channels, case.state_dim);
        let normed = if case.normed { "_normed" } else { "" };
        let name = format!("recurrent::selective_{channels}x{state_dim}{normed}");
        tests.push((name, Box::new(move || selective(case))));
    }
    tests.push(("recurrent::short_conv".into(), Box::new(short_conv)));
    tests.push(("recurrent::gated_norm".into(), Box::new(gated_norm)));
}

#[derive(Clone, Copy)]
struct Case {
    delta: bool,
    heads: usize,
    per_key: usize,
    rows: usize,
    cols: usize,
    width: usize,
    bias: bool,
}

const fn case(delta: bool, heads: usize, per_key: usize, rows: usize, cols: usize) -> Case {
    Case {
        delta,
        heads,
        per_key,
        rows,
        cols,
        width: 4,
        bias: !delta,
    }
}

const CASES: [Case; 10] = [
    case(true, 6, 2, 20, 12),
    case(true, 4, 2, 128, 128),
    case(true, 2, 1, 256, 256),
    Case {
        width: 3,
        ..case(true, 3, 3, 7, 10)
    },
    // More rows than threads of a block.
    case(true, 3, 1, 144, 32),
    case(false, 4, 2, 160, 64),
    case(false, 6, 3, 24, 16),
    case(false, 4, 4, 64, 128),
    case(false, 2, 2, 64, 256),
    Case {
        width: 2,
        ..case(false, 3, 1, 9, 6)
    },
];

impl Case {
    fn keys(&self) -> usize {
        self.heads / self.per_key
    }
    fn channels(&self) -> usize {
        2 * self.keys() * self.cols + self.heads * self.rows
    }
    /// Floats of the ring, and of all states.
    fn floats(&self) -> [usize; 2] {
        let matrices = self.heads * self.rows * self.cols;
        [self.channels() * self.width, matrices]
    }
    /// Floats of a row of input: channels, gate, steps, betas.
    fn stride(&self) -> usize {
        self.channels() + self.heads * (self.rows + 2)
    }
}

/// Weights, and the state of one session in f64.
struct Reference {
    case: Case,
    conv: Vec<f32>,
    conv_bias: Vec<f32>,
    rate: Vec<f32>,
    step_bias: Vec<f32>,
    skip: Vec<f32>,
    norm: Vec<f32>,
    /// All inputs so far.
    past: Vec<Vec<f32>>,
    states: Vec<f64>,
}

/// Factor on the sigmoid of a delta rule.
const BETA: f32 = 1.5;
const LEAST: f32 = 0.02;
const MOST: f32 = 1.5;
const EPS: f32 = 1e-5;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

impl Reference {
    fn new(case: Case, random: &mut Random) -> Reference {
        let [_, matrices] = case.floats();
        let rate = random_floats(random, case.heads);
        Reference {
            case,
            conv: random_floats(random, case.channels() * case.width),
            conv_bias: random_floats(random, case.channels()),
            rate: rate.iter().map(|r| -0.1 - r.abs()).collect(),
            step_bias: random_floats(random, case.heads),
            skip: random_floats(random, case.heads),
            norm: random_floats(random, case.rows),
            past: Vec::new(),
            states: vec![0.0; matrices],
        }
    }

    fn convolved(&self, channel: usize) -> f64 {
        let c = self.case;
        let bias = if c.bias { self.conv_bias[channel] } else { 0.0 };
        let mut sum = f64::from(bias);
        for (back, input) in self.past.iter().rev().take(c.width).enumerate() {
            let weight = self.conv[channel * c.width + c.width - 1 - back];
            sum += f64::from(weight) * f64::from(input[channel]);
        }
        silu(sum)
    }

    /// A token's outputs, plain, with the gate, and with norm and gate.
    fn token(&mut self, input: &[f32]) -> [Vec<f64>; 3] {
        let c = self.case;
        self.past.push(input.to_vec());
        let (mut plain, mut gated, mut normed) = (Vec::new(), Vec::new(), Vec::new());
        for head in 0..c.heads {
            let vector = |at: usize, n: usize| -> Vec<f64> {
                (0..n).map(|i| self.convolved(at + i)).collect()
            };
            let key = head / c.per_key;
            let mut q = vector(key * c.cols, c.cols);
            let mut k = vector((c.keys() + key) * c.cols, c.cols);
            let v = vector(2 * c.keys() * c.cols + head * c.rows, c.rows);
            if c.delta {
                for x in [&mut q, &mut k] {
                    let length = (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
                    x.iter_mut().for_each(|v| *v /= length);
                }
            }
            q.iter_mut().for_each(|v| *v *= f64::from(q_scale(c)));
            let behind = c.channels() + c.heads * c.rows;
            let raw = f64::from(input[behind + head]) + f64::from(self.step_bias[head]);
            let (least, most) = (f64::from(LEAST), f64::from(MOST));
            let step = raw.exp().ln_1p().clamp(least, most);
            let decay = (f64::from(self.rate[head]) * step).exp();
            let sigmoid = 1.0 / (1.0 + (-f64::from(input[behind + c.heads + head])).exp());
            let beta = f64::from(BETA) * sigmoid;
            let mut outputs = Vec::new();
            for (r, &v) in v.iter().enumerate() {
                let at = (head * c.rows + r) * c.cols;
                let row = &mut self.states[at..at + c.cols];
                row.iter_mut().for_each(|s| *s *= decay);
                let d = match c.delta {
                    true => {
                        let seen: f64 = row.iter().zip(&k).map(|(s, k)| s * k).sum();
                        beta * (v - seen)
                    }
                    false => step * v,
                };
                row.iter_mut().zip(&k).for_each(|(s, k)| *s += d * k);
                let out: f64 = row.iter().zip(&q).map(|(s, q)| s * q).sum();
                outputs.push(out + f64::from(self.skip[head]) * v);
            }
            let square = outputs.iter().map(|v| v * v).sum::<f64>() / c.rows as f64;
            let scale = 1.0 / (square + f64::from(EPS)).sqrt();
            for (r, out) in outputs.iter().enumerate() {
                let gate = silu(f64::from(input[c.channels() + head * c.rows + r]));
                gated.push(out * gate);
                normed.push(out * scale * f64::from(self.norm[r]) * gate);
            }
            plain.extend(outputs);
        }
        [plain, gated, normed]
    }
}

fn q_scale(case: Case) -> f32 {
    if case.delta {
        1.0 / (case.cols as f32).sqrt()
    } else {
        1.0
    }
}

/// A session on the device whose fixed state begins at an offset.
struct Device {
    session: Buffer,
    table: Buffer,
    fixed: Buffer,
}

const OFFSET: usize = 256;

fn device(floats: usize) -> Device {
    let fixed = upload(&vec![0.0f32; OFFSET / 4 + floats]);
    let session = upload(&[args::Session {
        fixed: fixed.address(),
        ..Default::default()
    }]);
    Device {
        table: upload(&[session.address()]),
        session,
        fixed,
    }
}

fn set_position(device: &Device, position: u32) {
    let session = args::Session {
        fixed: device.fixed.address(),
        position,
        ..Default::default()
    };
    device.session.write(0, &[session]).unwrap();
}

/// The outputs and the state of a step in a batch of sessions that stand where this one does: so many that no two
/// blocks share a head.
fn step_in_batch(case: Case, device: &Device, args: &args::Recurrent) -> [Vec<f32>; 2] {
    let batch = (kernels().multiprocessors() as usize).div_ceil(case.heads);
    let used = device.fixed.bytes() / 4;
    let mut fixed: Vec<f32> = download(&device.fixed, used);
    let floats = used.next_multiple_of(64);
    fixed.resize(floats, 0.0);
    let position = download::<args::Session>(&device.session, 1)[0].position;
    let fixed = fixed.repeat(batch);
    let all = upload(&fixed);
    let sessions: Vec<args::Session> = (0..batch)
        .map(|i| args::Session {
            fixed: all.address() + (i * floats * 4) as u64,
            position,
            ..Default::default()
        })
        .collect();
    let sessions = upload(&sessions);
    let size = size_of::<args::Session>();
    let table: Vec<u64> = (0..batch)
        .map(|i| sessions.address() + (i * size) as u64)
        .collect();
    let table = upload(&table);
    let values = case.heads * case.rows;
    let out = poisoned(batch * values * 4);
    // All have the same input.
    let args = args::Recurrent {
        sessions: table.address(),
        out: out.address(),
        in_stride: 0,
        ..*args
    };
    let step = |args: &args::Recurrent| {
        with_stream(|stream| unsafe {
            kernels()
                .recurrent_step(stream, args, (batch as u32, false))
                .unwrap()
        });
    };
    step(&args);
    let got: Vec<f32> = download(&out, batch * values);
    assert!(got.chunks(values).all(|row| row == &got[..values]));
    let state: Vec<f32> = download(&all, batch * floats);
    let mut states = state.chunks(floats).map(|state| &state[..used]);
    assert!(states.all(|of| of == &state[..used]));
    if kernels().rounds_recurrence(&args, (batch as u32, false)) {
        all.write(0, &fixed).unwrap();
        let (q8, scales) = (poisoned(batch * values), poisoned(batch * values / 8));
        step(&args::Recurrent {
            q8: q8.address(),
            q8_scale: scales.address(),
            out: 0,
            ..args
        });
        let (want_q8, want_scales) = (poisoned(batch * values), poisoned(batch * values / 8));
        let quantize = args::QuantizeInput {
            x: out.address(),
            q8: want_q8.address(),
            q8_scale: want_scales.address(),
            x_stride: values as u32,
            len: values as u32,
            groups: values as u32 / 32,
            source: args::Source::Copy as u32,
            ..Default::default()
        };
        with_stream(|stream| unsafe {
            kernels()
                .quantize_input(stream, &quantize, batch as u32)
                .unwrap()
        });
        let bytes = |b: &Buffer| download::<u8>(b, b.bytes());
        assert_eq!(bytes(&q8), bytes(&want_q8), "rounded outputs");
        assert_eq!(bytes(&scales), bytes(&want_scales), "scales");
    } else {
        assert!(
            !case.rows.is_multiple_of(32) || case.cols > 128,
            "not rounded"
        );
    }
    [got[..values].to_vec(), state[..used].to_vec()]
}

fn is_right(case: Case) {
    let mut random = Random::new(3, "recurrent");
    let mut reference = Reference::new(case, &mut random);
    let [ring, matrices] = case.floats();
    let device = device(ring + matrices);
    let vectors = [
        &reference.conv,
        &reference.conv_bias,
        &reference.rate,
        &reference.step_bias,
        &reference.skip,
        &reference.norm,
    ]
    .map(|v| upload(v));
    let [conv, conv_bias, rate, step_bias, skip, norm] = vectors.each_ref().map(Buffer::address);
    let keys = (case.keys() * case.cols) as u32;
    let channels = case.channels() as u32;
    let values = (case.heads * case.rows) as u32;
    let common = args::Recurrent {
        sessions: device.table.address(),
        conv_weight: conv,
        conv_bias: if case.bias { conv_bias } else { 0 },
        rate,
        step_bias,
        skip,
        state_offset: OFFSET as u64,
        matrix_offset: ring as u64 * 4,
        in_stride: case.stride() as u32,
        channels,
        width: case.width as u32,
        heads: case.heads as u32,
        per_key: case.per_key as u32,
        rows: case.rows as u32,
        cols: case.cols as u32,
        q_at: 0,
        k_at: keys,
        v_at: 2 * keys,
        gate_at: channels,
        step_at: channels + values,
        beta_at: channels + values + case.heads as u32,
        delta: u32::from(case.delta),
        beta_scale: BETA,
        q_scale: q_scale(case),
        eps: EPS,
        least: LEAST,
        most: MOST,
        ..Default::default()
    };
    let mut position = 0;
    // Chunks and single tokens by turns; a chunk shorter than the convolution among them.
    for count in [1usize, 1, 37, 1, 2, 64, 1, 1, 1, 100] {
        set_position(&device, position);
        let input = random_floats(&mut random, count * case.stride());
        let want: Vec<[Vec<f64>; 3]> = input
            .chunks(case.stride())
            .map(|row| reference.token(row))
            .collect();
        let input = upload(&input);
        let out = poisoned(count * case.heads * case.rows * 4);
        let convolved = poisoned(count * case.channels() * 4);
        let which = if count == 1 { position as usize % 3 } else { 0 };
        let args = args::Recurrent {
            input: input.address(),
            out: out.address(),
            convolved: convolved.address(),
            norm: if which == 2 { norm } else { 0 },
            gated: u32::from(which == 1),
            count: count as u32,
            ..common
        };
        let in_batch = (count == 1).then(|| step_in_batch(case, &device, &args));
        with_stream(|stream| unsafe {
            match count {
                1 => kernels().recurrent_step(stream, &args, (1, false)).unwrap(),
                _ => kernels().recurrent_chunk(stream, &args).unwrap(),
            }
        });
        let got: Vec<f32> = download(&out, count * case.heads * case.rows);
        if let Some([out, state]) = in_batch {
            assert_eq!(got, out, "at {position}: others in the batch matter");
            let alone: Vec<f32> = download(&device.fixed, device.fixed.bytes() / 4);
            assert!(alone == state, "at {position}: another state in a batch");
        }
        let want: Vec<f64> = want.iter().flat_map(|w| w[which].clone()).collect();
        let error = relative_error(&got, &want);
        assert!(error < 2e-5, "{count} tokens at {position}: {error}");
        position += count as u32;
    }
    let fixed: Vec<f32> = download(&device.fixed, OFFSET / 4 + ring + matrices);
    let state = &fixed[OFFSET / 4 + ring..];
    let error = relative_error(state, &reference.states);
    assert!(error < 2e-5, "state: {error}");
    assert!(
        fixed[..OFFSET / 4].iter().all(|x| *x == 0.0),
        "memory before"
    );
}

/// A layer of the first Mamba.
#[derive(Clone, Copy)]
struct Selective {
    channels: usize,
    state_dim: usize,
    width: usize,
    normed: bool,
}

const SELECTIVE: [Selective; 5] = [
    selective_case(56, 9, 4, false),
    selective_case(150, 16, 4, true),
    selective_case(8192, 16, 4, true),
    selective_case(72, 5, 3, true),
    selective_case(33, 64, 2, false),
];

const fn selective_case(
    channels: usize,
    state_dim: usize,
    width: usize,
    normed: bool,
) -> Selective {
    Selective {
        channels,
        state_dim,
        width,
        normed,
    }
}

/// Channels whose states lie together.
const BLOCK: usize = 16;

impl Selective {
    /// Where a number of a channel lies in the state.
    fn place(&self, channel: usize, n: usize) -> usize {
        (channel / BLOCK * self.state_dim + n) * BLOCK + channel % BLOCK
    }
    fn stride(&self) -> usize {
        2 * self.channels + 3
    }
    fn part_stride(&self) -> usize {
        2 * self.state_dim + 1
    }
}

/// Weights of a layer, and the state of one session in f64.
struct SelectiveReference {
    case: Selective,
    conv: Vec<f32>,
    bias: Vec<f32>,
    rate: Vec<f32>,
    skip: Vec<f32>,
    norms: [Vec<f32>; 2],
    past: Vec<Vec<f32>>,
    states: Vec<f64>,
}

impl SelectiveReference {
    fn token(&mut self, input: &[f32], parts: &[f32], steps: &[f32]) -> Vec<f64> {
        let c = self.case;
        self.past.push(input[..c.channels].to_vec());
        let mut both: Vec<Vec<f64>> = parts[..2 * c.state_dim]
            .chunks(c.state_dim)
            .map(|part| part.iter().map(|v| f64::from(*v)).collect())
            .collect();
        for (part, norm) in both.iter_mut().zip(&self.norms).filter(|_| c.normed) {
            let square = part.iter().map(|v| v * v).sum::<f64>() / c.state_dim as f64;
            let scale = 1.0 / (square + f64::from(EPS)).sqrt();
            let weighted = part.iter_mut().zip(norm);
            weighted.for_each(|(v, w)| *v *= scale * f64::from(*w));
        }
        let out = |channel: usize| {
            let recent = self.past.iter().rev().take(c.width).enumerate();
            let sum: f64 = recent
                .map(|(back, x)| {
                    let weight = self.conv[channel * c.width + c.width - 1 - back];
                    f64::from(weight) * f64::from(x[channel])
                })
                .sum();
            let x = silu(sum + f64::from(self.bias[channel]));
            let dt = f64::from(steps[channel]).exp().ln_1p();
            let mut sum = f64::from(self.skip[channel]) * x;
            for (n, (b, c)) in both[0].iter().zip(&both[1]).enumerate() {
                let place = self.case.place(channel, n);
                let s = &mut self.states[place];
                *s = (dt * f64::from(self.rate[place])).exp2() * *s + dt * x * b;
                sum += *s * c;
            }
            sum * silu(f64::from(input[c.channels + channel]))
        };
        (0..c.channels).map(out).collect()
    }
}

/// Tokens one by one, in batches and in chunks.
fn selective(case: Selective) {
    let mut random = Random::new(6, "selective");
    let blocks = case.channels.div_ceil(BLOCK);
    let states = blocks * case.state_dim * BLOCK;
    let rate = random_floats(&mut random, states);
    let mut reference = SelectiveReference {
        case,
        conv: random_floats(&mut random, case.channels * case.width),
        bias: random_floats(&mut random, case.channels),
        rate: rate.iter().map(|r| -0.1 - r.abs()).collect(),
        skip: random_floats(&mut random, case.channels),
        norms: [(); 2].map(|()| random_floats(&mut random, case.state_dim)),
        past: Vec::new(),
        states: vec![0.0; states],
    };
    let ring = case.channels * case.width;
    let device = device(ring + states);
    let r = &reference;
    let vectors = [&r.conv, &r.bias, &r.rate, &r.skip, &r.norms[0], &r.norms[1]].map(|v| upload(v));
    let [conv, bias, rate, skip, b_norm, c_norm] = vectors.each_ref().map(Buffer::address);
    let convolution = args::Recurrent {
        sessions: device.table.address(),
        conv_weight: conv,
        conv_bias: bias,
        state_offset: OFFSET as u64,
        in_stride: case.stride() as u32,
        channels: case.channels as u32,
        width: case.width as u32,
        ..Default::default()
    };
    let scan = args::Selective {
        sessions: device.table.address(),
        rate,
        skip,
        norms: [b_norm, c_norm].map(|weight| match case.normed {
            true => args::Norm {
                weight,
                eps: EPS,
                ..Default::default()
            },
            false => args::Norm::default(),
        }),
        matrix_offset: (OFFSET + ring * 4) as u64,
        in_stride: case.stride() as u32,
        part_stride: case.part_stride() as u32,
        channels: case.channels as u32,
        state_dim: case.state_dim as u32,
        ..Default::default()
    };
    let mut position = 0;
    for count in [1usize, 1, 37, 1, 2, 64, 1, 1, 1, 100] {
        set_position(&device, position);
        let input = random_floats(&mut random, count * case.stride());
        let parts = random_floats(&mut random, count * case.part_stride());
        let steps = random_floats(&mut random, count * case.channels);
        let want: Vec<f64> = (0..count)
            .flat_map(|t| {
                let input = &input[t * case.stride()..];
                let parts = &parts[t * case.part_stride()..];
                reference.token(input, parts, &steps[t * case.channels..])
            })
            .collect();
        let (input, parts, steps) = (upload(&input), upload(&parts), upload(&steps));
        let convolved = poisoned(count * case.channels * 4);
        let conv = args::Recurrent {
            input: input.address(),
            convolved: convolved.address(),
            count: count as u32,
            ..convolution
        };
        // The result takes the place of the steps.
        let scan = args::Selective {
            input: input.address(),
            convolved: convolved.address(),
            parts: parts.address(),
            steps: steps.address(),
            out: steps.address(),
            count: count as u32,
            ..scan
        };
        with_stream(|stream| unsafe {
            let batch = (count == 1).then_some(1);
            kernels()
                .convolve(stream, &conv, batch.map(|n| (n, false)))
                .unwrap();
            match count {
                1 => kernels().selective_step(stream, &scan, (1, false)).unwrap(),
                _ => kernels().selective_chunk(stream, &scan).unwrap(),
            }
        });
        let got: Vec<f32> = download(&steps, count * case.channels);
        let error = relative_error(&got, &want);
        assert!(error < 2e-5, "{count} tokens at {position}: {error}");
        position += count as u32;
    }
    let fixed: Vec<f32> = download(&device.fixed, OFFSET / 4 + ring + states);
    let error = relative_error(&fixed[OFFSET / 4 + ring..], &reference.states);
    assert!(error < 2e-5, "state: {error}");
    assert!(
        fixed[..OFFSET / 4].iter().all(|x| *x == 0.0),
        "memory before"
    );
}

fn short_conv() {
    let (channels, width) = (150usize, 3usize);
    let mut random = Random::new(4, "short_conv");
    let weight = random_floats(&mut random, channels * width);
    let bias = random_floats(&mut random, channels);
    let device = device(channels * width);
    let (dw, db) = (upload(&weight), upload(&bias));
    let mut past: Vec<Vec<f32>> = Vec::new();
    for count in [1usize, 70, 1, 2, 1, 33] {
        set_position(&device, past.len() as u32);
        let input = random_floats(&mut random, count * channels * 3);
        let mut want = Vec::new();
        for row in input.chunks(channels * 3) {
            past.push(
                (0..channels)
                    .map(|c| row[c] * row[2 * channels + c])
                    .collect(),
            );
            for c in 0..channels {
                let recent = past.iter().rev().take(width).enumerate();
                let sum: f64 = recent
                    .map(|(back, x)| {
                        f64::from(weight[c * width + width - 1 - back]) * f64::from(x[c])
                    })
                    .sum();
                want.push(f64::from(row[channels + c]) * (sum + f64::from(bias[c])));
            }
        }
        let (input, out) = (upload(&input), poisoned(count * channels * 4));
        let args = args::ShortConv {
            sessions: device.table.address(),
            input: input.address(),
            out: out.address(),
            weight: dw.address(),
            bias: db.address(),
            state_offset: OFFSET as u64,
            in_stride: channels as u32 * 3,
            channels: channels as u32,
            width: width as u32,
            prefill: u32::from(count > 1),
            count: count as u32,
            padding: 0,
        };
        with_stream(|stream| unsafe { kernels().short_conv(stream, &args, (1, false)).unwrap() });
        let got: Vec<f32> = download(&out, count * channels);
        let error = relative_error(&got, &want);
        assert!(error < 1e-6, "{count} tokens: {error}");
    }
}

fn gated_norm() {
    let mut random = Random::new(5, "gated_norm");
    for (len, group) in [(96usize, 32usize), (40, 40), (4096, 512), (21, 7)] {
        for (gate_first, same, normed, sigmoid) in [
            (false, true, true, false),
            (false, true, true, true),
            (true, false, true, false),
            (false, false, true, false),
            (true, false, false, false),
        ] {
            let (rows, stride) = (3usize, len + 5);
            let x = random_floats(&mut random, rows * len);
            let gate = random_floats(&mut random, rows * stride);
            let weight = random_floats(&mut random, if same { group } else { len });
            let mut want = Vec::new();
            for (x, gate) in x.chunks(len).zip(gate.chunks(stride)) {
                for g in 0..len / group {
                    let at = g * group;
                    let through = |i: usize| {
                        let gate = f64::from(gate[at + i]);
                        silu(gate) / if sigmoid { gate } else { 1.0 }
                    };
                    let before: Vec<f64> = (0..group)
                        .map(|i| f64::from(x[at + i]) * if gate_first { through(i) } else { 1.0 })
                        .collect();
                    let square = before.iter().map(|v| v * v).sum::<f64>() / group as f64;
                    let scale = 1.0 / (square + f64::from(EPS)).sqrt();
                    for (i, v) in before.iter().enumerate() {
                        let w = f64::from(weight[if same { i } else { at + i }]);
                        let after = if gate_first { 1.0 } else { through(i) };
                        want.push(v * after * if normed { scale * w } else { 1.0 });
                    }
                }
            }
            let (dx, dg, dw) = (upload(&x), upload(&gate), upload(&weight));
            let args = args::GatedNorm {
                x: dx.address(),
                gate: dg.address(),
                weight: if normed { dw.address() } else { 0 },
                len: len as u32,
                group: group as u32,
                gate_stride: stride as u32,
                same: u32::from(same),
                gate_first: u32::from(gate_first),
                sigmoid: u32::from(sigmoid),
                eps: EPS,
                ..Default::default()
            };
            with_stream(|stream| unsafe {
                kernels().gated_norm(stream, &args, rows as u32).unwrap()
            });
            let error = relative_error(&download::<f32>(&dx, rows * len), &want);
            assert!(error < 1e-6, "{len} {group} {gate_first} {same}: {error}");
        }
    }
}
