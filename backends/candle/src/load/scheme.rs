//! How a checkpoint is quantised, by `quantization_config` of config.json.
//!
//! Input: the content of config.json. Output: a [`Scheme`]. What must hold: an unknown method, or an unknown
//! setting of a method, is an error that names it.

use serde_json::Value;
use std::fmt;
use text_embeddings_backend_core::BackendError;
use text_embeddings_checkpoint::is_switched_off;

/// How a checkpoint's matrices are quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// 8-bit floating point (E4M3), with one scale for the matrix, for each row, or for each block.
    Fp8 {
        /// Rows and columns of a block.
        block: Option<[usize; 2]>,
    },
    /// `compressed-tensors`: bytes, or numbers of four or eight bits packed along the columns.
    CompressedTensors {
        bits: u32,
        /// Columns that share a scale. If absent, all columns of a row share it.
        group: Option<usize>,
        /// Whether each group has a zero of its own.
        has_zeros: bool,
        /// Whether a tensor says to which group a column belongs.
        is_ordered: bool,
    },
    /// GPTQ: values are packed along the columns of the weight `[outputs, inputs]`, which is stored
    /// transposed.
    Gptq {
        bits: u32,
        /// Inputs that share a scale. If absent, all inputs share it.
        group: Option<usize>,
        /// The number to add to a stored zero.
        zero: i32,
        /// Whether a tensor says to which group an input belongs.
        is_ordered: bool,
    },
    /// AWQ: values are packed along the rows of the weight, which is stored transposed.
    Awq {
        /// Inputs that share a scale. If absent, all inputs share it.
        group: Option<usize>,
    },
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bits, group) = match *self {
            Self::Fp8 { block: None } => return f.write_str("FP8"),
            Self::Fp8 { block: Some([rows, columns]) } => {
                return write!(f, "FP8 in blocks of {rows} × {columns}");
            }
            Self::CompressedTensors { bits, group, .. } => ("compressed-tensors", bits, group),
            Self::Gptq { bits, group, .. } => ("GPTQ", bits, group),
            Self::Awq { group } => ("AWQ", 4, group),
        };
        match group {
            Some(group) => write!(f, "{name}, {bits} bits in groups of {group}"),
            None => write!(f, "{name}, {bits} bits"),
        }
    }
}

impl Scheme {
    /// Whether matrices are bytes with one scale for each row, as `--dtype int8` has them.
    pub(crate) fn is_bytes(self) -> bool {
        matches!(self, Self::CompressedTensors { bits: 8, group: None, has_zeros: false, .. })
    }

    /// The scheme of this `config.json`; `None` if the checkpoint is not quantised.
    pub(crate) fn from_config(config: &Value) -> Result<Option<Self>, BackendError> {
        let values = &config["quantization_config"];
        if values.is_null() {
            return Ok(None);
        }
        // As `transformers` understands a file without a name.
        let is_bitsandbytes = ["load_in_4bit", "load_in_8bit"].iter().any(|name| values[name] == true);
        let unnamed = if is_bitsandbytes { "bitsandbytes" } else { "an unnamed method" };
        let method = values["quant_method"].as_str().unwrap_or(unnamed);
        let settings = QuantizationConfig { method, values };
        match settings.method {
            "fp8" | "fbgemm_fp8" => settings.plain_fp8(),
            "gptq" => settings.gptq(),
            "awq" => settings.awq(),
            "compressed-tensors" => settings.compressed_tensors(),
            method => Err(BackendError::Load(format!(
                "config.json: quantization_config of {method} is not supported; supported: fp8, fbgemm_fp8, \
                 compressed-tensors, gptq, awq"
            ))),
        }
        .map(Some)
    }
}

/// Settings of FP8. Activations are not quantised here, so those about activations have no effect.
const FP8: &[&str] = &[
    "activation_scale_ub",
    "activation_scheme",
    "dequantize",
    "expert_dtype",
    "fmt",
    "ignored_layers",
    "modules_to_convert",
    "modules_to_not_convert",
    "quant_method",
    "scale_fmt",
    "weight_block_size",
];

/// Settings of GPTQ that say what is stored, and settings that only its quantiser or its kernels read.
const GPTQ: &[&str] = &[
    "act_group_aware",
    "adapter",
    "backend",
    "batch_size",
    "bits",
    "block_name_to_quantize",
    "cache_block_outputs",
    "checkpoint_format",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "desc_act",
    "exllama_config",
    "fallback",
    "foem",
    "format",
    "gptaq",
    "group_size",
    "hessian",
    "lm_head",
    "max_input_length",
    "meta",
    "method",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "mse",
    "pack_dtype",
    "pad_token_id",
    "quant_method",
    "static_groups",
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "v2",
];

/// Further settings of AWQ. transformers writes GPTQ's, too.
const AWQ: &[&str] = &[
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "modules_to_not_convert",
    "pack_method",
    "version",
    "zero_point",
];

/// Settings of compressed-tensors.
const COMPRESSED: &[&str] = &[
    "config_groups",
    "dequantize",
    "format",
    "global_compression_ratio",
    "ignore",
    "kv_cache_scheme",
    "quant_method",
    "quantization_status",
    "run_compressed",
    "sparsity_config",
    "use_optimized_inference",
    "version",
];

/// Settings of a group's weights in compressed-tensors.
const WEIGHTS: &[&str] = &[
    "actorder",
    "block_structure",
    "dynamic",
    "group_size",
    "num_bits",
    "observer",
    "observer_kwargs",
    "scale_dtype",
    "strategy",
    "symmetric",
    "type",
    "zp_dtype",
];

/// `quantization_config`.
struct QuantizationConfig<'a> {
    method: &'a str,
    values: &'a Value,
}

impl QuantizationConfig<'_> {
    fn refused<T>(&self, setting: &str, value: &Value) -> Result<T, BackendError> {
        let method = self.method;
        Err(BackendError::Load(format!(
            "config.json: quantization_config of {method} with {setting} {value} is not supported"
        )))
    }

    /// Refuses a setting that is not among the `known` ones, unless it is empty or switched off.
    fn check_known(&self, values: &Value, known: &[&str]) -> Result<(), BackendError> {
        let mut settings = values.as_object().into_iter().flatten();
        let unknown =
            settings.find(|(name, value)| !known.contains(&name.as_str()) && !is_switched_off(value));
        unknown.map_or(Ok(()), |(name, value)| self.refused(name, value))
    }

    /// Refuses a text that is there and is not among the `supported` ones.
    fn check_text(&self, values: &Value, name: &str, supported: &[&str]) -> Result<(), BackendError> {
        let value = &values[name];
        let is_supported = value.as_str().is_some_and(|text| supported.contains(&text));
        if value.is_null() || is_supported { Ok(()) } else { self.refused(name, value) }
    }

    fn bits(&self, value: &Value) -> Result<u32, BackendError> {
        match value.as_u64() {
            Some(bits @ (4 | 8)) => Ok(bits as u32),
            _ => self.refused("bits", value),
        }
    }

    fn group(&self, value: &Value) -> Result<Option<usize>, BackendError> {
        match value.as_i64() {
            Some(-1) => Ok(None),
            Some(group) if group > 0 => Ok(Some(group as usize)),
            _ => self.refused("group_size", value),
        }
    }

    fn plain_fp8(&self) -> Result<Scheme, BackendError> {
        self.check_known(self.values, FP8)?;
        self.check_text(self.values, "fmt", &["e4m3", "float8_e4m3fn"])?;
        self.check_text(self.values, "activation_scheme", &["dynamic", "static"])?;
        self.fp8(&self.values["weight_block_size"])
    }

    fn fp8(&self, block: &Value) -> Result<Scheme, BackendError> {
        let sizes = block.as_array().map(|sizes| sizes.iter().map(Value::as_u64).collect::<Vec<_>>());
        match sizes.as_deref() {
            None if block.is_null() => Ok(Scheme::Fp8 { block: None }),
            Some(&[Some(rows @ 1..), Some(columns @ 1..)]) => {
                Ok(Scheme::Fp8 { block: Some([rows as usize, columns as usize]) })
            }
            _ => self.refused("weight_block_size", block),
        }
    }

    fn gptq(&self) -> Result<Scheme, BackendError> {
        self.check_known(self.values, GPTQ)?;
        self.check_text(self.values, "pack_dtype", &["int32"])?;
        let [format, other] = ["checkpoint_format", "format"].map(|name| &self.values[name]);
        let format = if format.is_null() { other } else { format };
        let zero = match format.as_str().unwrap_or("gptq") {
            "gptq" => 1,
            "gptq_v2" => 0,
            _ => return self.refused("checkpoint_format", format),
        };
        let [bits, group] = ["bits", "group_size"].map(|name| &self.values[name]);
        let is_ordered = self.values["desc_act"] == true;
        Ok(Scheme::Gptq { bits: self.bits(bits)?, group: self.group(group)?, zero, is_ordered })
    }

    fn awq(&self) -> Result<Scheme, BackendError> {
        self.check_known(self.values, &[GPTQ, AWQ].concat())?;
        let [bits, version, group] = ["bits", "version", "group_size"].map(|name| &self.values[name]);
        if bits != 4 {
            return self.refused("bits", bits);
        }
        if !version.as_str().unwrap_or("gemm").eq_ignore_ascii_case("gemm") {
            return self.refused("version", version);
        }
        Ok(Scheme::Awq { group: self.group(group)? })
    }

    fn compressed_tensors(&self) -> Result<Scheme, BackendError> {
        const FORMATS: [&str; 5] =
            ["int-quantized", "pack-quantized", "float-quantized", "naive-quantized", "mixed-precision"];
        self.check_known(self.values, COMPRESSED)?;
        self.check_text(self.values, "format", &FORMATS)?;
        // Models that were pruned and store their zeros like other values.
        let sparsity = &self.values["sparsity_config"];
        if !is_switched_off(sparsity) && sparsity["format"] != "dense" {
            return self.refused("sparsity_config", sparsity);
        }
        let groups = &self.values["config_groups"];
        let mut found = None;
        for group in groups.as_object().into_iter().flat_map(|groups| groups.values()) {
            self.check_text(group, "format", &FORMATS)?;
            let scheme = match group.get("weights") {
                // Only activations are quantised.
                Some(Value::Null) => continue,
                Some(weights) => self.compressed_weights(weights)?,
                None => return self.refused("config_groups", groups),
            };
            if found.is_some_and(|found| found != scheme) {
                return self.refused("config_groups that differ:", groups);
            }
            found = Some(scheme);
        }
        found.map_or_else(|| self.refused("config_groups", groups), Ok)
    }

    /// The scheme of a group's weights in compressed-tensors.
    fn compressed_weights(&self, weights: &Value) -> Result<Scheme, BackendError> {
        self.check_known(weights, WEIGHTS)?;
        let actorder = &weights["actorder"];
        let is_ordered = match (actorder, actorder.as_str()) {
            (Value::Bool(is_on), _) => *is_on,
            // The last two change the order of quantisation, not the groups.
            (Value::Null, _) | (_, Some("weight" | "static")) => false,
            (_, Some("group" | "dynamic")) => true,
            _ => return self.refused("actorder", actorder),
        };
        let has_zeros = weights["symmetric"] == false;
        let strategy = weights["strategy"].as_str().unwrap_or("tensor");
        match (weights["type"].as_str().unwrap_or("int"), strategy) {
            ("float", "tensor" | "channel") if weights["num_bits"] == 8 => Ok(Scheme::Fp8 { block: None }),
            ("float", "block") if weights["num_bits"] == 8 => self.fp8(&weights["block_structure"]),
            ("int", "tensor" | "channel") => {
                let bits = self.bits(&weights["num_bits"])?;
                Ok(Scheme::CompressedTensors { bits, group: None, has_zeros, is_ordered })
            }
            ("int", "group") => Ok(Scheme::CompressedTensors {
                bits: self.bits(&weights["num_bits"])?,
                group: self.group(&weights["group_size"])?,
                has_zeros,
                is_ordered,
            }),
            _ => self.refused("weights", weights),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::json;

    fn scheme(config: &Value) -> Result<Option<Scheme>, String> {
        Scheme::from_config(&json!({ "quantization_config": config })).map_err(|error| error.to_string())
    }

    fn weights(weights: &Value) -> Value {
        json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}})
    }

    #[test]
    fn schemes_are_those_that_config_json_names() {
        for (config, expected) in [
            (json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), "FP8 in blocks of 128 × 128"),
            (json!({"quant_method": "fbgemm_fp8"}), "FP8"),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 128}), "GPTQ, 4 bits in groups of 128"),
            (json!({"quant_method": "gptq", "bits": 8, "group_size": -1}), "GPTQ, 8 bits"),
            (
                json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMM"}),
                "AWQ, 4 bits in groups of 64",
            ),
            (
                weights(&json!({"num_bits": 8, "type": "int", "strategy": "channel"})),
                "compressed-tensors, 8 bits",
            ),
            (
                weights(&json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128})),
                "compressed-tensors, 4 bits in groups of 128",
            ),
            (
                weights(
                    &json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 32]}),
                ),
                "FP8 in blocks of 64 × 32",
            ),
            (
                json!({
                    "quant_method": "compressed-tensors",
                    "sparsity_config": {"format": "dense", "global_sparsity": 0.1},
                    "config_groups": {
                        "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
                        "group_1": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
                        "group_2": {"weights": null, "input_activations": {"num_bits": 8}},
                    },
                }),
                "FP8",
            ),
        ] {
            assert_eq!(scheme(&config).unwrap().unwrap().to_string(), expected);
        }
        assert_eq!(Scheme::from_config(&json!({})).unwrap(), None);
    }

    #[test]
    fn other_schemes_are_refused_by_name() {
        for (config, part) in [
            (json!({"quant_method": "bitsandbytes"}), "bitsandbytes is not supported; supported: fp8"),
            (json!({"bits": 4}), "of an unnamed method is not supported"),
            (json!({"load_in_4bit": true}), "of bitsandbytes is not supported"),
            (json!({"quant_method": "gptq", "bits": 3, "group_size": 128}), "gptq with bits 3"),
            (json!({"quant_method": "gptq", "bits": 4}), "group_size null"),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "group_size 0"),
            (
                json!({"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "marlin"}),
                "checkpoint_format \"marlin\"",
            ),
            (
                json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"}),
                "version \"gemv\"",
            ),
            (json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size [128]"),
            (json!({"quant_method": "fp8", "weight_block_size": [0, 1]}), "weight_block_size [0,1]"),
            (json!({"quant_method": "compressed-tensors"}), "config_groups null"),
            (weights(&json!({"num_bits": 4, "type": "float"})), "weights {"),
            (weights(&json!(null)), "config_groups {"),
            (
                json!({"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}}),
                "config_groups {",
            ),
            (json!({"quant_method": "fp8", "foo": 1}), "fp8 with foo 1"),
            (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fmt \"e5m2\""),
            (json!({"quant_method": "fp8", "activation_scheme": "weird"}), "activation_scheme \"weird\""),
            (
                json!({"quant_method": "gptq", "bits": 4, "group_size": 8, "dynamic": {"-:.*": {}}}),
                "with dynamic {",
            ),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 8, "format": "marlin"}), "\"marlin\""),
            (json!({"quant_method": "awq", "bits": 4, "group_size": 8, "rotation": "x"}), "rotation \"x\""),
            (json!({"quant_method": "compressed-tensors", "format": "marlin-24"}), "format \"marlin-24\""),
            (json!({"quant_method": "compressed-tensors", "transform_config": {"a": 1}}), "transform_config"),
            (json!({"quant_method": "compressed-tensors", "sparsity_config": {"a": 1}}), "sparsity_config"),
            (weights(&json!({"num_bits": 4, "actorder": "odd"})), "actorder \"odd\""),
            (weights(&json!({"num_bits": 4, "scaled": true})), "scaled true"),
        ] {
            let message = scheme(&config).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
