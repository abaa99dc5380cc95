//! Heads that guess further tokens (multi-token prediction), by the names that folders have for them. In GGUF they are layers behind
//! the last one.

use super::tensors::layer_and_part;

/// Tensors that a head has beside its layer: their names in folders, and in GGUF behind `nextn.`.
const PARTS: [(&str, &str); 7] = [
    ("eh_proj", "eh_proj"),
    ("enorm", "enorm"),
    ("hnorm", "hnorm"),
    ("embed_tokens", "embed_tokens"),
    ("shared_head.norm", "shared_head_norm"),
    ("shared_head.head", "shared_head_head"),
    ("final_layernorm", "shared_head_norm"),
];
/// The same in Qwen's folders, behind `mtp.`, as the others call them.
const OF_QWEN: [(&str, &str); 5] = [
    ("fc", "eh_proj"),
    ("pre_fc_norm_embedding", "enorm"),
    ("pre_fc_norm_hidden", "hnorm"),
    ("embed_tokens", "embed_tokens"),
    ("norm", "shared_head.norm"),
];
/// The same in MiMo's folders, behind `mtp_layers.{head}.`.
const OF_MIMO: [(&str, &str); 4] = [
    ("input_proj", "eh_proj"),
    ("token_layernorm", "enorm"),
    ("hidden_layernorm", "hnorm"),
    ("final_layernorm", "shared_head.norm"),
];

/// The part of a head in GGUF that a part of a layer is, if it is one.
pub(super) fn part(part: &str) -> Option<&'static str> {
    let known = PARTS.iter().find(|(name, _)| *name == part);
    known.map(|(_, gguf)| *gguf)
}

/// A name that begins with `mtp.`, as a part of the layer behind `n_layers`; none inside for heads behind the first one, and for
/// names that are not known.
pub(super) fn of_qwen(name: &str, n_layers: u64) -> Option<Option<(u64, &str)>> {
    let name = name.strip_prefix("mtp.")?;
    let beside = OF_QWEN.iter().find(|(known, _)| *known == name);
    Some(match beside {
        Some((_, part)) => Some((n_layers, part)),
        None => name.strip_prefix("layers.0.").map(|part| (n_layers, part)),
    })
}

/// A name that begins with `mtp_layers.`, as a part of a layer behind `n_layers`.
pub(super) fn of_mimo(name: &str, n_layers: u64) -> Option<(u64, &str)> {
    let (head, part) = layer_and_part(name.strip_prefix("mtp_")?)?;
    let beside = OF_MIMO.iter().find(|(known, _)| *known == part);
    let part = beside.map_or(part, |(_, part)| *part);
    Some((n_layers.checked_add(head)?, part))
}
