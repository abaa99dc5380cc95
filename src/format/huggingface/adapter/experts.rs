//! Pairs of adapters for the experts of a layer. PEFT has them module by module where each expert is one, as transformers 4 had
//! them. Where all experts are parameters of one module, as in transformers 5, it has one pair for each parameter, with the ranks of
//! all experts; that of the parameter it has found first is in a `base_layer` inside that of the next.

use super::super::experts::{PROJECTIONS, are_together, take_turns};
use super::super::tensors::{layer_and_part, of_experts, without_prefixes};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::adapter::{AdapterPair, BaseShape, ExpertShape};
use crate::quant::TensorType;
use std::collections::BTreeMap;

/// Where PEFT puts what it wraps.
const INSIDE: &str = ".base_layer";
/// Parameters of a module of all experts, in its order.
const PARAMETERS: [(&str, Fused); 3] = [
    ("gate_up_proj", Fused::GateUp),
    ("up_proj", Fused::Up),
    ("down_proj", Fused::Down),
];

/// A matrix of all experts of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fused {
    GateUp,
    Up,
    Down,
}

/// What a module of a layer with experts is.
pub(super) enum ExpertModule<'a> {
    /// A matrix of one expert, by the name of all of them in GGUF.
    Single(usize, &'static str),
    /// A matrix of all, by its parameter's name.
    Fused(&'a str, Fused),
}

impl<'a> ExpertModule<'a> {
    /// What the end of a module's name is, behind that of its layer; `None` if it is not of experts. `is_there` tells whether there
    /// is another module, `wanted` what the adapter's parameters end with.
    ///
    /// Errors: `Unsupported` for modules that have no such matrices.
    pub(super) fn find(
        module: &'a str,
        wanted: &[String],
        is_there: impl Fn(&str) -> bool,
    ) -> Result<Option<ExpertModule<'a>>> {
        let unknown = |what: &str| {
            let message = format!("module {module}: {what}");
            Err(Error::new(Status::Unsupported, message))
        };
        let outside = module.strip_suffix(INSIDE);
        let whole = outside.unwrap_or(module);
        let short = without_prefixes(whole);
        let part = layer_and_part(short).map_or(short, |(_, part)| part);
        for (known, fused) in [
            ("block_sparse_moe.input_linear", Fused::GateUp),
            ("block_sparse_moe.output_linear", Fused::Down),
        ] {
            if part == known {
                return Ok(Some(ExpertModule::Fused("weight", fused)));
            }
        }
        if part == "experts" || part.ends_with(".experts") {
            let is_wanted = |parameter: &str| {
                let name = format!("{whole}.{parameter}");
                wanted.iter().any(|end| {
                    let before = name.strip_suffix(end.as_str());
                    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
                })
            };
            let mut all = PARAMETERS.into_iter().filter(|(name, _)| is_wanted(name));
            let found = match (all.next(), all.next(), all.next()) {
                (Some(first), Some(_), None) if outside.is_some() => Some(first),
                (Some(_), Some(second), None) if is_there(&format!("{whole}{INSIDE}")) => {
                    Some(second)
                }
                (Some(only), None, None) if outside.is_none() => Some(only),
                _ => None,
            };
            return match found {
                Some((name, fused)) => Ok(Some(ExpertModule::Fused(name, fused))),
                None => {
                    unknown("target_parameters does not say which matrices of experts it is for")
                }
            };
        }
        let Some(rest) = of_experts(part) else {
            return Ok(None);
        };
        let single = rest.split_once('.').and_then(|(index, projection)| {
            let (_, name) = PROJECTIONS.iter().find(|(known, _)| *known == projection)?;
            let number = index.parse().ok()?;
            (usize::to_string(&number) == index).then_some((number, *name))
        });
        match single {
            Some((index, name)) => Ok(Some(ExpertModule::Single(index, name))),
            None => unknown("is no matrix of an expert that can have an adapter"),
        }
    }
}

impl Fused {
    /// The pairs for the tensors in GGUF of a layer that a pair with the ranks of all experts is for.
    pub(super) fn pairs(
        self,
        pair: AdapterPair,
        layer: u64,
        base: &BaseShape,
        shape: &ExpertShape,
    ) -> Result<Vec<AdapterPair>> {
        let (inputs, outputs) = match self {
            Fused::GateUp => (shape.width, 2 * shape.inner),
            Fused::Up => (shape.width, shape.inner),
            Fused::Down => (shape.inner, shape.width),
        };
        // Earlier versions took the rows of matrices for their columns.
        let is_turned = [pair.inputs, pair.outputs] == [outputs, inputs] && inputs != outputs;
        let mut pair = if is_turned { pair.transposed()? } else { pair };
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let together = match self {
            Fused::GateUp if are_together(&base.architecture) => "ffn_gate_up_exps",
            Fused::GateUp => {
                let take_turns = take_turns(&base.architecture);
                let [upper, lower] = ["ffn_gate_exps", "ffn_up_exps"].map(name);
                return Ok(Vec::from(pair.halves(upper, lower, take_turns)?));
            }
            Fused::Up => "ffn_up_exps",
            Fused::Down => "ffn_down_exps",
        };
        pair.target = name(together);
        Ok(vec![pair])
    }
}

/// Pairs of single experts, by their target.
#[derive(Default)]
pub(super) struct Singles(BTreeMap<String, BTreeMap<usize, AdapterPair>>);

impl Singles {
    /// Takes in the pair of an expert, whose target is the tensor of all of them.
    pub(super) fn add(&mut self, index: usize, pair: AdapterPair, count: usize) -> Result<()> {
        if index >= count {
            fail!(
                MissingTensor,
                "tensor {} is for expert {index}; the model has {count}",
                pair.names[0]
            );
        }
        let all = self.0.entry(pair.target.clone()).or_default();
        if let Some(some) = all.values().next()
            && [some.inputs, some.outputs] != [pair.inputs, pair.outputs]
        {
            return Err(pair.misfit(some.inputs, some.outputs));
        }
        if let Some(other) = all.get(&index) {
            fail!(
                FileCorrupt,
                "tensors {} and {} are for the same matrix",
                other.names[0],
                pair.names[0]
            );
        }
        all.insert(index, pair);
        Ok(())
    }

    /// One pair of each target for all experts. Those without one get zeros, and lower ranks, too.
    pub(super) fn stacked(self, count: usize) -> impl Iterator<Item = Result<AdapterPair>> {
        self.0.into_values().map(move |pairs| stacked(pairs, count))
    }
}

fn stacked(pairs: BTreeMap<usize, AdapterPair>, count: usize) -> Result<AdapterPair> {
    let rank = pairs.values().map(|pair| pair.rank).max().unwrap_or(1);
    let Some(first) = pairs.values().next() else {
        fail!(Internal, "experts without pairs");
    };
    let (inputs, outputs) = (first.inputs, first.outputs);
    // The factor is one for all.
    let scale = pairs.values().map(|pair| pair.scale).find(|s| *s != 0.0);
    let scale = scale.unwrap_or(0.0);
    let zeros = |each: usize| {
        let len = each.saturating_mul(rank).saturating_mul(count);
        first.check_len(len)?;
        try_vec(len, 0.0, "an adapter")
    };
    let (mut a, mut b) = (zeros(inputs)?, zeros(outputs)?);
    let mut types = first.types;
    for (index, pair) in &pairs {
        for (all, own) in types.iter_mut().zip(pair.types) {
            if *all != own {
                *all = TensorType::F32;
            }
        }
        let factor = match pair.scale == scale {
            true => 1.0,
            false => pair.scale / scale,
        };
        if factor != 1.0 {
            types[1] = TensorType::F32;
        }
        a[index * rank * inputs..][..pair.a.len()].copy_from_slice(&pair.a);
        let rows = b[index * rank * outputs..].chunks_exact_mut(rank);
        for (to, from) in rows.zip(pair.b.chunks_exact(pair.rank)) {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = factor * x);
            if let Some(x) = to.iter().find(|x| !x.is_finite()) {
                fail!(
                    InvalidModel,
                    "tensor {}: with its factor {} beside that of others, {scale}, an element is {x}, which is not finite",
                    pair.names[1],
                    pair.scale
                );
            }
        }
    }
    Ok(AdapterPair {
        target: first.target.clone(),
        names: first.names.clone(),
        stack: count,
        rank,
        inputs,
        outputs,
        scale,
        types,
        a,
        b,
    })
}
