"""Writes packed.safetensors beside this file, to be packed by pack.py: one linear layer of 24 outputs and 64 inputs in each format
that folders have weights of two to eight bits in, as `{format}.{part}`, and what they stand for as `{format}.expected` (F32, [24, 64]).

Those of compressed-tensors are packed and unpacked by that package; AWQ is unpacked by its converter; GPTQ and AWQ's gemv have
a definition of one line: scales[g] * (code - zeros[g]), codes and zero points from the lowest bits of a word on, those of three
bits across the borders of three words.
Ternary weights are packed, unpacked and rounded by transformers (run with TORCHDYNAMO_DISABLE=1).
Needs compressed-tensors, numpy, safetensors, torch, transformers."""
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.bitnet import WeightQuant, pack_weights, unpack_weights

OUT, IN = 24, 64
rng = np.random.default_rng(7)
tensors = {}


def put(name, expected, **parts):
    for part, x in (parts | dict(expected=expected.float())).items():
        tensors[f"{name}.{part}"] = x.contiguous()


def words(codes, bits, axis):
    """Codes packed along an axis, the first in the lowest bits."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, 0)
    if bits == 3:
        spread = np.concatenate([codes, np.zeros((-len(codes) % 32, *codes.shape[1:]), np.uint32)])
        stream = (spread[:, None] >> np.arange(3, dtype=np.uint32).reshape(3, *[1] * (codes.ndim - 1)) & 1).reshape(-1, 32, *codes.shape[1:])
        packed = sum(stream[:, i] << np.uint32(i) for i in range(32))
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed.astype(np.uint32), 0, axis)).view(np.int32))
    codes = np.concatenate([codes, np.zeros((-len(codes) % (32 // bits), *codes.shape[1:]), np.uint32)])
    codes = codes.reshape(-1, 32 // bits, *codes.shape[1:])
    packed = sum(codes[:, i] << np.uint32(bits * i) for i in range(32 // bits))
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed, 0, axis)).view(np.int32))


def gptq(name, bits, group, symmetric, stored_less, order=False):
    groups = IN // group
    codes = rng.integers(0, 1 << bits, (IN, OUT))
    zeros = rng.integers(1, 1 << bits, (groups, OUT)) if not symmetric else np.full((groups, OUT), 1 << bits - 1)
    scales = (rng.random((groups, OUT)) * 0.02 + 0.001).astype(np.float16)
    g_idx = np.arange(IN) // group
    if order:
        rng.shuffle(g_idx)
    expected = scales[g_idx].astype(np.float32) * (codes - zeros[g_idx])
    put(name, torch.from_numpy(expected.T.astype(np.float32)), qweight=words(codes, bits, 0), qzeros=words(zeros - stored_less, bits, 1),
        scales=torch.from_numpy(scales), g_idx=torch.from_numpy(g_idx.astype(np.int32)))


def awq(name, group, zero_point):
    groups = IN // group
    random = lambda *shape: torch.from_numpy(rng.integers(-2**31, 2**31, shape).astype(np.int32))
    qweight, qzeros = random(IN, OUT // 8), random(groups, OUT // 8) if zero_point else None
    scales = torch.from_numpy((rng.random((groups, OUT)) * 0.02 + 0.001).astype(np.float16))
    weight, scale, zero = AutoAWQConverter(group_size=group, zero_point=zero_point)._convert_gemm_module(qweight, scales, qzeros)
    wide = lambda x: x.float().repeat_interleave(group, 1)
    expected = (weight.float() - (wide(zero) if zero_point else 0)) * wide(scale)
    put(name, expected, qweight=qweight, scales=scales, **(dict(qzeros=qzeros) if zero_point else {}))


def gemv(name, group, room):
    """Groups of a row beside each other, with room for more."""
    groups = IN // group
    codes, zeros = rng.integers(0, 16, (OUT, IN)), rng.integers(0, 16, (OUT, groups))
    scales = (rng.random((OUT, groups)) * 0.02 + 0.001).astype(np.float16)
    wide = lambda x: np.repeat(x, group, 1)
    expected = wide(scales).astype(np.float32) * (codes - wide(zeros))
    pad = lambda x: np.concatenate([x, np.zeros((OUT, room - groups), x.dtype)], 1)
    put(name, torch.from_numpy(expected.astype(np.float32)), qweight=words(codes, 4, 1), qzeros=words(pad(zeros), 4, 1), scales=torch.from_numpy(pad(scales)))


def compressed(name, form, dtype, **args):
    args = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.from_numpy(rng.normal(0, 0.05, (OUT, IN)).astype(np.float32))
    groups = IN // args.group_size if args.group_size else 1
    by_group = weight.reshape(OUT, groups, -1)
    parts = {}
    if args.type == "float":
        scale = by_group.abs().amax(-1) / 6
        if args.group_size == 16:
            parts["weight_global_scale"] = torch.tensor([448 * 6 / weight.abs().max()])
            scale = (scale * parts["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        else:
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
    elif args.symmetric:
        scale = (by_group.abs().amax(-1) / (2 ** (args.num_bits - 1) - 0.5)).to(dtype)
    else:
        low, high = by_group.amin(-1), by_group.amax(-1)
        scale = ((high - low) / (2**args.num_bits - 1)).to(dtype)
        parts["weight_zero_point"] = (torch.round(-low / scale.float()) - 2 ** (args.num_bits - 1)).clamp(-8, 7).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    state = compressor.compress(dict(weight=weight.to(scale.dtype), weight_scale=scale, **parts), scheme)
    state = {k: v for k, v in state.items() if v is not None}
    wide = {k: v.float() if k == "weight_scale" and v.dtype in (torch.bfloat16, torch.float16) else v for k, v in state.items()}
    put(name, compressor.decompress(wide, scheme)["weight"], **state)


def bitnet(name, scale, apply):
    """Ternary codes, packed by transformers."""
    codes = torch.from_numpy(rng.integers(-1, 2, (OUT, IN)))
    scale = torch.tensor([scale])
    packed = pack_weights(codes.clone())
    assert (unpack_weights(packed, torch.float32) == codes).all()
    put(name, apply(codes.float(), scale), weight=packed, weight_scale=scale)


gptq("gptq", 4, 32, False, 1)
gptq("gptq_symmetric", 4, 64, True, 1)
gptq("gptq_v2", 4, 32, False, 0)
gptq("gptq_order", 4, 32, False, 1, order=True)
gptq("gptq_8", 8, 32, True, 1)
gptq("gptq_narrow", 4, 16, True, 1)
awq("awq", 32, True)
awq("awq_symmetric", 64, False)
compressed("packed", "pack-quantized", torch.bfloat16, num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
compressed("packed_rows", "pack-quantized", torch.float16, num_bits=4, type="int", symmetric=True, strategy="channel")
compressed("packed_zeros", "pack-quantized", torch.float16, num_bits=4, type="int", symmetric=False, strategy="group", group_size=32)
compressed("packed_8", "pack-quantized", torch.float32, num_bits=8, type="int", symmetric=True, strategy="channel")
compressed("bytes", "int-quantized", torch.float16, num_bits=8, type="int", symmetric=True, strategy="channel")
compressed("nvfp4", "nvfp4-pack-quantized", torch.float32, num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
compressed("mxfp4", "mxfp4-pack-quantized", torch.float32, num_bits=4, type="float", symmetric=True, strategy="group", group_size=32)
# ModelOpt has the inverse of the factor, under another name.
put("modelopt", tensors["nvfp4.expected"].clone(), weight=tensors["nvfp4.weight_packed"].clone(), weight_scale=tensors["nvfp4.weight_scale"].clone(),
    weight_scale_2=1 / tensors["nvfp4.weight_global_scale"][0], input_scale=torch.tensor(1.0))
rng = np.random.default_rng(8)
gptq("gptq_2", 2, 32, False, 1)
gptq("gptq_2_symmetric", 2, 64, True, 1)
gptq("gptq_3", 3, 32, False, 1)
gptq("gptq_3_symmetric", 3, 32, True, 0)
gptq("gptq_3_order", 3, 16, False, 1, order=True)
gemv("awq_gemv", 32, 32)
rng = np.random.default_rng(9)
bitnet("bitnet_divided", 0.0131, lambda codes, scale: codes / scale)
bitnet("bitnet_multiplied", 37.0, lambda codes, scale: codes * scale)
bitnet("bitnet_tiny", 3e6, lambda codes, scale: codes / scale)
weight = torch.from_numpy(rng.normal(0, 0.05, (OUT, IN)).astype(np.float32)).bfloat16().float()
put("bitnet_online", WeightQuant.apply(weight), weight=weight.bfloat16())
save_file(tensors, Path(__file__).parent / "packed.safetensors")
for name in sorted({name.split(".")[0] for name in tensors}):
    print(name, {k.split(".", 1)[1]: (list(v.shape), str(v.dtype)) for k, v in tensors.items() if k.startswith(name + ".")})
