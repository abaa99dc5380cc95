//! Tests of the CUDA backend. Where there is no usable GPU they report themselves as ignored; `make
//! gpu-bundle` packs them for a machine that has one.

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod batch_f16;
mod drafts;
mod embed;
mod experts;
mod families;
mod faults;
mod files;
mod fused;
mod gpu;
mod group;
mod heads;
mod host_experts;
mod kernels_attention;
mod kernels_attention_far;
mod kernels_experts;
mod kernels_heads;
mod kernels_matmul;
mod kernels_norm;
mod kernels_recurrent;
mod kernels_sample;
mod kernels_weights;
mod limits;
mod model;
mod nccl;
mod networks;
mod parts;
mod parts_drafts;
mod ranks;
mod ranks_adapters;
mod ranks_drafts;
mod sampling;
mod states;
mod variants;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if faults::child() {
        return;
    }
    let mut arguments = Arguments::from_args();
    // One at a time: some measure the device's free memory.
    arguments.test_threads = Some(1);
    let missing = gpu::missing();
    if let Some(reason) = &missing {
        eprintln!("ignored, as there is no GPU to test: {reason}");
        // What others mean by "include ignored" are tests that lack files, not a GPU.
        arguments.include_ignored = false;
    }
    let mut tests: Vec<(String, Box<dyn FnOnce() + Send>)> = Vec::new();
    kernels_weights::tests(&mut tests);
    batch_f16::tests(&mut tests);
    kernels_norm::tests(&mut tests);
    kernels_matmul::tests(&mut tests);
    kernels_experts::tests(&mut tests);
    kernels_attention::tests(&mut tests);
    kernels_attention_far::tests(&mut tests);
    kernels_heads::tests(&mut tests);
    kernels_sample::tests(&mut tests);
    kernels_recurrent::tests(&mut tests);
    model::tests(&mut tests);
    networks::tests(&mut tests);
    experts::tests(&mut tests);
    sampling::tests(&mut tests);
    states::tests(&mut tests);
    limits::tests(&mut tests);
    parts::tests(&mut tests);
    parts_drafts::tests(&mut tests);
    ranks_drafts::tests(&mut tests);
    ranks_adapters::tests(&mut tests);
    ranks::tests(&mut tests);
    nccl::tests(&mut tests);
    group::tests(&mut tests);
    host_experts::tests(&mut tests);
    families::tests(&mut tests);
    variants::tests(&mut tests);
    drafts::tests(&mut tests);
    heads::tests(&mut tests);
    fused::tests(&mut tests);
    embed::tests(&mut tests);
    adapters::tests(&mut tests);
    faults::tests(&mut tests);
    files::tests(&mut tests);
    let alone = missing.is_none() && ranks::gpus().len() < 2;
    if alone {
        for group in ["ranks::", "nccl::", "group::"] {
            let ranks = tests.iter().filter(|(name, _)| name.starts_with(group));
            ranks.for_each(|(name, _)| eprintln!("ignored, as there is one GPU: {name}"));
            arguments.skip.push(group.into());
        }
    }
    // at_once.py gives a process a few of them. Processes that tests start name the one that they are for.
    if arguments.filter.is_none()
        && let Ok(names) = std::env::var("EMBERLM_TESTS")
    {
        tests.retain(|(name, _)| names.split(',').any(|wanted| wanted == name));
    }
    let trials = tests
        .into_iter()
        .map(|(name, run)| {
            Trial::test(name, move || {
                run();
                Ok(())
            })
            .with_ignored_flag(missing.is_some())
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
