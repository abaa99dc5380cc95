//! Shapes that host and kernels each work out, such as stages of rings and what a block's shared memory holds: a C++ compiler says of
//! all types whether both come to the same.

use super::args::INPUT_BYTES;
use super::record::RecordType;
use super::{adapters, attention, experts, feed_forward, matrix, matvec_batch, product};
use crate::model::Activation;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The files of `kernels/` that say what is compared.
const HEADERS: [&str; 7] = [
    "attend_q8.cuh",
    "experts_product.cuh",
    "matmul.cuh",
    "matvec_batch.cuh",
    "matvec_experts.cuh",
    "product_few.cuh",
    "route.cuh",
];

/// A compiler that reads `text` as the emulation of kernels is read; none where it does not know C++20 and `_Float16`.
fn compiler() -> Option<Command> {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let command = || {
        let mut command = Command::new(&name);
        command.args(["-std=c++20", "-x", "c++", "-fsyntax-only", "-w"]);
        command
    };
    let knows = succeeds(command().arg("-"), "_Float16 half;").is_ok();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = command();
    for folder in ["tests/emulation", "kernels"] {
        command.arg("-I").arg(root.join(folder));
    }
    command.arg("-");
    knows.then_some(command)
}

fn succeeds(command: &mut Command, text: &str) -> Result<(), String> {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = pipes
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let sent = child
        .stdin
        .take()
        .map(|mut to| to.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() && sent.is_some_and(|sent| sent.is_ok()) {
        true => Ok(()),
        false => Err(wrong),
    }
}

/// What kernels must find, as conditions in C++.
fn conditions() -> Vec<String> {
    let mut all = Vec::new();
    let mut same = |kernels: String, host: usize| all.push(format!("{kernels} == {host}"));
    for ty in RecordType::ALL {
        let (t, row) = (ty.number(), ty.row());
        for units in 1..=32 / row.unit {
            let n = units * row.unit;
            same(
                format!("record_bytes({t}, {n})"),
                ty.record_bytes(n) as usize,
            );
        }
        for groups in (1..=200).map(|units| units * row.unit) {
            let (count, full, last) = matrix::slices(ty, groups);
            let found = format!("slices_of({t}, {groups})");
            same(format!("{found}.count"), count as usize);
            same(format!("{found}.full"), full as usize);
            same(format!("{found}.last"), last as usize);
            let bytes = experts::own_input_bytes(ty, groups);
            same(format!("input_bytes({t}, {groups})"), bytes);
        }
        if ty.is_float() {
            continue;
        }
        let (rows, stages) = product::stages(ty);
        same(format!("stage_rows<{t}>()"), rows);
        same(format!("stages<{t}>()"), stages);
        let group = format!("(WarpShare<stage_rows<{t}>(), true>::GROUP)");
        same(group, product::group_rows(ty) as usize);
        let (rows, stages) = experts::stages(ty);
        same(format!("expert_stage_rows<{t}>()"), rows);
        same(format!("expert_stages<{t}>()"), stages);
        for rows in matvec_batch::ROWS {
            let shape = format!("BatchShape<{t}, {}>", rows / 8);
            same(format!("({shape}::FACTORS)"), row.factors);
            let tiles = matvec_batch::stage_tiles(ty, rows);
            same(format!("({shape}::STAGE_TILES)"), tiles);
            let before = matvec_batch::before_ring(ty, rows);
            same(format!("({shape}::RING_AT)"), before);
            let stride = format!("stage_stride(record_bytes({t}, 32))");
            let stage = matvec_batch::stage_bytes(ty, rows);
            same(format!("{tiles} * BATCH_TILE_ROWS * {stride}"), stage);
        }
    }
    for dim in 1..=1024 {
        let stride = attention::part_stride(dim) as usize;
        same(format!("part_stride({dim})"), stride);
    }
    for (dim, _) in attention::Q8_HEAD_SIZES {
        let row = crate::backend::state::row_bytes(crate::backend::KvType::Q8_0, dim);
        same(format!("(Q8_ROW<{dim}>)"), row);
    }
    same("sizeof(RouteMemory)".into(), experts::ROUTE_BYTES);
    same("sizeof(PairTile)".into(), size_of::<experts::PairTile>());
    same("BATCH_CLUSTER".into(), matvec_batch::CLUSTER);
    same("BATCH_THREADS".into(), matvec_batch::THREADS as usize);
    same("INPUT_BYTES".into(), INPUT_BYTES as usize);
    let threads = adapters::LORA_DOWN_THREADS as usize;
    same("LORA_DOWN_THREADS".into(), threads);
    let (alpha, limit) = (1.0, 1.0);
    for (name, activation) in [
        ("SILU", Activation::Silu),
        ("GELU_TANH", Activation::GeluTanh),
        ("GELU", Activation::Gelu),
        ("CLAMPED_SWIGLU", Activation::ClampedSwiglu { alpha, limit }),
        ("RELU_SQUARED", Activation::ReluSquared),
        ("LIMITED_SILU", Activation::LimitedSilu { limit }),
    ] {
        let number = feed_forward::activation(activation)
            .expect("kernels have it")
            .kind;
        same(name.into(), number as usize);
    }
    all
}

/// A text that compiles where all conditions hold.
fn text_of(conditions: &[String]) -> String {
    let mut text: String = HEADERS
        .map(|header| format!("#include \"{header}\"\n"))
        .concat();
    for condition in conditions {
        text += &format!("static_assert({condition});\n");
    }
    text
}

#[test]
fn kernels_have_the_same() {
    let Some(mut compiler) = compiler() else {
        println!("SKIPPED: CXX or c++ is no C++20 compiler with _Float16");
        return;
    };
    let mut conditions = conditions();
    if let Err(wrong) = succeeds(&mut compiler, &text_of(&conditions)) {
        panic!("{wrong}");
    }
    // One that does not hold is found.
    conditions.push(format!("stages<{}>() == 7", RecordType::Q4K.number()));
    let wrong = succeeds(&mut compiler, &text_of(&conditions)).expect_err("seven stages");
    assert!(
        wrong.contains("static assertion failed") || wrong.contains("static_assert"),
        "{wrong}"
    );
}
