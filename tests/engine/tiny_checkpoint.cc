#include "tests/engine/tiny_checkpoint.h"

#include <bit>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using nlohmann::json;

// Exact for what a TinyCheckpoint holds, infinities and NaN.
uint16_t ExactFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t exponent = (bits >> 23) & 0xffu;
  const uint32_t mantissa = (bits >> 13) & 0x3ffu;
  if (exponent == 0) return static_cast<uint16_t>(sign);
  if (exponent == 0xff) return static_cast<uint16_t>(sign | 0x7c00u | mantissa);
  RECURVE_CHECK(exponent > 112 && exponent < 143 && (bits & 0x1fffu) == 0);
  return static_cast<uint16_t>(sign | ((exponent - 112) << 10) | mantissa);
}

void AppendElement(float value, DType dtype, std::string* payload) {
  if (dtype == DType::kFloat32) {
    payload->append(reinterpret_cast<const char*>(&value), sizeof(value));
    return;
  }
  const uint16_t bits =
      dtype == DType::kFloat16 ? ExactFloat16(value) : FloatToBFloat16(value);
  payload->append(reinterpret_cast<const char*>(&bits), sizeof(bits));
}

const char* SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kFloat16:
      return "F16";
    default:
      return "BF16";
  }
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  RECURVE_CHECK(file.good());
}

void WriteSafetensors(
    const std::string& path,
    const std::map<std::string, TinyCheckpoint::Tensor>& tensors) {
  json header = json::object();
  std::string payload;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = payload.size();
    for (float value : tensor.values)
      AppendElement(value, tensor.dtype, &payload);
    header[name] = {{"dtype", SafetensorsName(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {begin, payload.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  WriteFile(path, std::string(reinterpret_cast<const char*>(&length), 8) +
                      text + payload);
}

}  // namespace

TinyCheckpoint TinyCheckpoint::Hybrid() {
  TinyCheckpoint checkpoint;
  checkpoint.config = json::parse(R"({
    "model_type": "recurve", "vocab_size": 260, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "float32",
    "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes",
    "max_position_embeddings": 256,
    "layers": [
      {"mixer": "tpa", "num_heads": 2, "head_dim": 8, "q_rank": 3, "kv_rank": 2,
       "position": {"type": "lrpe_rotate", "base": 100.0}},
      {"mixer": "linear", "num_heads": 2, "head_dim": 6, "value_dim": 8,
       "q_activation": "silu", "k_activation": "silu", "output_gate": "sigmoid",
       "position": {"type": "lrpe_cosine", "base": 100.0},
       "log_decay": [-0.25, -0.01]}
    ]})");
  checkpoint.FillTensors();
  return checkpoint;
}

void TinyCheckpoint::Fill(const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  uint64_t seed = 0;
  for (char c : name) seed = MixBits(seed + static_cast<unsigned char>(c));
  TestRandom random(seed);
  Tensor tensor{std::move(shape), {}, DType::kFloat32};
  for (int64_t i = 0; i < count; ++i)
    tensor.values.push_back(static_cast<float>(random.Uniform(-31, 31)) / 64);
  tensors[name] = std::move(tensor);
}

void TinyCheckpoint::FillLayer(int64_t index) {
  const json& layer = config["layers"][index];
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const std::string mixer = prefix + "token_mixer.";
  const int64_t hidden = config["hidden_size"];
  const int64_t inner = config["intermediate_size"];
  const int64_t heads = layer["num_heads"];
  const int64_t dim = layer["head_dim"];
  const int64_t value_dim = layer.value("value_dim", dim);
  if (layer["mixer"] == "tpa") {
    const int64_t q_rank = layer["q_rank"];
    const int64_t kv_rank = layer["kv_rank"];
    if (q_rank > 0)
      Fill(mixer + "q_head_proj.weight", {q_rank * heads, hidden});
    Fill(mixer + "q_proj.weight",
         {(q_rank > 0 ? q_rank : heads) * dim, hidden});
    if (layer.value("head_norm", false))
      Fill(mixer + "norm.weight", {value_dim});
    Fill(mixer + "k_head_proj.weight", {kv_rank * heads, hidden});
    Fill(mixer + "k_proj.weight", {kv_rank * dim, hidden});
    Fill(mixer + "v_head_proj.weight", {kv_rank * heads, hidden});
    Fill(mixer + "v_proj.weight", {kv_rank * value_dim, hidden});
  } else {
    Fill(mixer + "q_proj.weight", {heads * dim, hidden});
    Fill(mixer + "k_proj.weight", {heads * dim, hidden});
    Fill(mixer + "v_proj.weight", {heads * value_dim, hidden});
    if (layer.value("norm", "rms") != "none")
      Fill(mixer + "norm.weight", {heads * value_dim});
    if (layer.contains("output_gate")) {
      Fill(mixer + "output_gate.0.weight", {5, hidden});
      Fill(mixer + "output_gate.1.weight", {heads * value_dim, 5});
    }
  }
  Fill(mixer + "o_proj.weight", {hidden, heads * value_dim});
  Fill(prefix + "token_norm.weight", {hidden});
  Fill(prefix + "channel_norm.weight", {hidden});
  Fill(prefix + "channel_mixer.w1.weight", {inner, hidden});
  Fill(prefix + "channel_mixer.w2.weight", {inner, hidden});
  Fill(prefix + "channel_mixer.w3.weight", {hidden, inner});
}

void TinyCheckpoint::FillTensors() {
  tensors.clear();
  const int64_t vocab = config["vocab_size"];
  const int64_t hidden = config["hidden_size"];
  Fill("model.embed_tokens.weight", {vocab, hidden});
  Fill("model.final_norm.weight", {hidden});
  if (!config.value("tie_word_embeddings", false))
    Fill("lm_head.weight", {vocab, hidden});
  for (size_t i = 0; i < config["layers"].size(); ++i)
    FillLayer(static_cast<int64_t>(i));
}

void TinyCheckpoint::SetDType(DType dtype) {
  for (auto& [name, tensor] : tensors) tensor.dtype = dtype;
}

void TinyCheckpoint::Write(const std::string& folder, int shards) const {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/config.json", config.dump());
  if (shards == 1) {
    WriteSafetensors(folder + "/model.safetensors", tensors);
    return;
  }
  std::vector<std::map<std::string, Tensor>> parts(shards);
  json weight_map = json::object();
  const auto file = [&](size_t part) {
    return absl::StrCat("model-", part + 1, "-of-", shards, ".safetensors");
  };
  size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t part = next++ % parts.size();
    parts[part][name] = tensor;
    weight_map[name] = file(part);
  }
  for (size_t part = 0; part < parts.size(); ++part)
    WriteSafetensors(absl::StrCat(folder, "/", file(part)), parts[part]);
  WriteFile(folder + "/model.safetensors.index.json",
            json({{"weight_map", weight_map}}).dump());
}

}  // namespace recurve
