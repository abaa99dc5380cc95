//! Model files with the tensors of another one in another type.

use super::quantize::quantize_row;
use emberlm::format::writer::Writer;
use emberlm::format::{ModelFile, Tensor};
use emberlm::quant::{TensorType, dequantize_row};

/// The model with every matrix in type `ty`, each element the nearest to that of `source` that
/// the tests' simple quantizer finds (the same in F32). Norms and biases stay.
pub fn converted(source: &ModelFile, ty: TensorType) -> ModelFile {
    rewritten(source, |tensor| {
        if tensor.dims.len() == 1 || tensor.name.ends_with(".bias") {
            (tensor.ty, tensor.bytes().to_vec())
        } else {
            (ty, quantized(tensor, ty))
        }
    })
}

/// A file of the same metadata whose tensors `convert` makes from those of `source`.
pub fn rewritten(
    source: &ModelFile,
    convert: impl Fn(&Tensor) -> (TensorType, Vec<u8>),
) -> ModelFile {
    ModelFile::from_bytes(&rewritten_bytes(source, convert)).unwrap()
}

/// The same as the bytes of the file.
pub fn rewritten_bytes(
    source: &ModelFile,
    convert: impl Fn(&Tensor) -> (TensorType, Vec<u8>),
) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in &source.metadata {
        writer.set(key, value.clone());
    }
    let mut contents = Vec::new();
    for tensor in source.tensors.values() {
        let (ty, bytes) = convert(tensor);
        writer.tensor(&tensor.name, ty, &tensor.dims).unwrap();
        contents.push(bytes);
    }
    let mut file = Vec::new();
    let mut contents = contents.iter();
    writer
        .write(&mut file, |_, out| out.write_all(contents.next().unwrap()))
        .unwrap();
    file
}

pub fn quantized(tensor: &Tensor, ty: TensorType) -> Vec<u8> {
    let mut elements = vec![0.0; tensor.row_len() * tensor.rows()];
    dequantize_row(tensor.ty, tensor.bytes(), &mut elements);
    let rows = elements.chunks(tensor.row_len());
    rows.flat_map(|row| quantize_row(ty, row)).collect()
}
