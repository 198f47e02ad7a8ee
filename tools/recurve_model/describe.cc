#include "tools/recurve_model/describe.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/byte_size.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "engine/models/emit.h"
#include "engine/program/plan.h"
#include "kv_cache/cache_spec.h"

namespace recurve {
namespace {

// By the plan of a server with all types on auto.
MemoryNeeds NeedsOf(const ModelDefinition& model, const Program& program,
                    bool gpu) {
  Device device;
  device.gpu = gpu;
  if (gpu) device.pages = GpuPagesFor(model, device.weights);
  const Plan plan = Lower(program, device);
  MemoryNeeds needs;
  needs.weights = plan.weight_bytes;
  needs.cache_per_token = plan.page_bytes / kPageTokens;
  needs.state_per_sequence = plan.slot_bytes;
  return needs;
}

void AddStored(const Checkpoint& checkpoint, CheckpointFacts* facts) {
  std::set<std::string> files;
  for (const std::string& name : checkpoint.names()) {
    const SafetensorsFile::Other* const other = checkpoint.FindOther(name);
    std::string type;
    int64_t bytes = 0;
    if (other != nullptr) {
      type = other->type;
      bytes = other->bytes;
    } else {
      const TensorView tensor = checkpoint.Tensor(name).value();
      type = std::string(absl::string_view(Name(tensor.dtype)));
      bytes = tensor.num_elements() * SizeOf(tensor.dtype);
    }
    StoredWeights& stored = facts->stored[type];
    ++stored.tensors;
    stored.bytes += bytes;
    facts->stored_bytes += bytes;
    files.insert(checkpoint.FileOf(name));
  }
  facts->files = static_cast<int64_t>(files.size());
}

void AddLine(absl::string_view name, absl::string_view value,
             std::string* text) {
  absl::StrAppendFormat(text, "  %-24s %s\n", name, value);
}

// "10 bytes on the CPU, 20 bytes on a GPU".
std::string OnEach(int64_t cpu, int64_t gpu) {
  return absl::StrCat(ExactBytes(cpu), " on the CPU, ", ExactBytes(gpu),
                      " on a GPU");
}

nlohmann::ordered_json FitJson(const Fit& fit) {
  return {{"page_bytes", fit.page_bytes},
          {"pages_per_sequence", fit.pages_per_sequence},
          {"sequence_bytes", fit.sequence_bytes},
          {"spare_bytes", fit.spare_bytes},
          {"sequences", fit.sequences}};
}

std::string FitText(const MemoryNeeds& needs, const Fit& fit) {
  std::string each;
  if (fit.page_bytes > 0) {
    absl::StrAppend(&each, fit.pages_per_sequence, " pages of ", kPageTokens,
                    " tokens, ", HumanBytes(fit.page_bytes), " each");
  }
  if (needs.state_per_sequence > 0) {
    absl::StrAppend(&each, each.empty() ? "" : ", and ",
                    HumanBytes(needs.state_per_sequence), " of state");
  }
  return absl::StrCat(fit.sequences, " sequences: each ",
                      HumanBytes(fit.sequence_bytes), " (", each,
                      "), in addition to the weights and a spare ",
                      fit.page_bytes > 0 ? "page and slot, " : "slot, ",
                      HumanBytes(fit.spare_bytes));
}

}  // namespace

CheckpointFacts Describe(const Checkpoint& checkpoint,
                         const ModelDefinition& model) {
  CheckpointFacts facts;
  facts.path = checkpoint.dir();
  facts.family = model.family;
  facts.variant = model.variant;
  facts.remarks = model.remarks;
  facts.ignored_keys = model.ignored_keys;
  for (const LayerDefinition& layer : model.layers) {
    facts.mixers.emplace_back(layer.mixer->name());
    std::string options = layer.mixer->Describe();
    if (std::find(facts.mixer_options.begin(), facts.mixer_options.end(),
                  options) == facts.mixer_options.end()) {
      facts.mixer_options.push_back(std::move(options));
    }
  }
  facts.tpe = model.tpe != nullptr;
  facts.hidden_size = model.hidden_size;
  facts.intermediate_size = model.intermediate_size;
  facts.vocab_size = model.vocab_size;
  facts.max_position_embeddings = model.max_position_embeddings;
  facts.parameters = model.parameters;
  AddStored(checkpoint, &facts);
  const Program program = Emit(model);
  facts.cpu = NeedsOf(model, program, /*gpu=*/false);
  facts.gpu = NeedsOf(model, program, /*gpu=*/true);
  facts.tokenizer = model.tokenizer;
  facts.bos_token_id = model.bos_token_id;
  facts.eos_token_ids = model.eos_token_ids;
  return facts;
}

std::string CompressRuns(const std::vector<std::string>& names) {
  std::string text;
  for (size_t begin = 0; begin < names.size();) {
    size_t end = begin;
    while (end < names.size() && names[end] == names[begin]) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ", ", end - begin, " x ",
                    names[begin]);
    begin = end;
  }
  return text;
}

std::string FactsText(const CheckpointFacts& facts) {
  std::string text = absl::StrCat(facts.path, "\n");
  AddLine("family",
          facts.variant.empty()
              ? facts.family
              : absl::StrCat(facts.family, ", variant ", facts.variant),
          &text);
  for (const std::string& remark : facts.remarks)
    AddLine("note", remark, &text);
  if (!facts.ignored_keys.empty()) {
    AddLine("keys without effect", absl::StrJoin(facts.ignored_keys, ", "),
            &text);
  }
  AddLine("layers",
          absl::StrCat(facts.mixers.size(), ": ", facts.tpe ? "tpe, then " : "",
                       CompressRuns(facts.mixers)),
          &text);
  for (const std::string& options : facts.mixer_options)
    AddLine("", options, &text);
  AddLine(
      "sizes",
      absl::StrCat("hidden ", facts.hidden_size, ", inner ",
                   facts.intermediate_size, ", vocabulary ", facts.vocab_size),
      &text);
  AddLine("longest sequence",
          absl::StrCat(facts.max_position_embeddings, " tokens"), &text);
  AddLine("parameters", absl::StrCat(facts.parameters), &text);
  AddLine("weights on disk",
          absl::StrCat(ExactBytes(facts.stored_bytes), " in ", facts.files,
                       facts.files == 1 ? " file" : " files"),
          &text);
  for (const auto& [dtype, stored] : facts.stored) {
    AddLine(absl::StrCat("  ", dtype),
            absl::StrCat(ExactBytes(stored.bytes), " in ", stored.tensors,
                         stored.tensors == 1 ? " tensor" : " tensors"),
            &text);
  }
  AddLine("weights in memory", OnEach(facts.cpu.weights, facts.gpu.weights),
          &text);
  AddLine("cache for each token",
          facts.cpu.cache_per_token == 0
              ? "none"
              : OnEach(facts.cpu.cache_per_token, facts.gpu.cache_per_token),
          &text);
  AddLine("state for each sequence",
          facts.cpu.state_per_sequence == 0
              ? "none"
              : ExactBytes(facts.cpu.state_per_sequence),
          &text);
  AddLine("tokenizer",
          facts.tokenizer.empty() ? "none, token ids only" : facts.tokenizer,
          &text);
  AddLine("begin of sequence",
          facts.bos_token_id ? absl::StrCat(*facts.bos_token_id) : "none",
          &text);
  AddLine("end of sequence",
          facts.eos_token_ids.empty()
              ? "none"
              : absl::StrJoin(facts.eos_token_ids, ", "),
          &text);
  return text;
}

nlohmann::ordered_json FactsJson(const CheckpointFacts& facts) {
  nlohmann::ordered_json stored = nlohmann::ordered_json::object();
  for (const auto& [dtype, weights] : facts.stored) {
    stored[dtype] = {{"tensors", weights.tensors}, {"bytes", weights.bytes}};
  }
  nlohmann::ordered_json json = {
      {"path", facts.path},
      {"family", facts.family},
      {"variant", facts.variant},
      {"remarks", facts.remarks},
      {"ignored_keys", facts.ignored_keys},
      {"num_layers", facts.mixers.size()},
      {"mixers", facts.mixers},
      {"mixer_options", facts.mixer_options},
      {"tpe", facts.tpe},
      {"hidden_size", facts.hidden_size},
      {"intermediate_size", facts.intermediate_size},
      {"vocab_size", facts.vocab_size},
      {"max_position_embeddings", facts.max_position_embeddings},
      {"parameters", facts.parameters},
      {"files", facts.files},
      {"stored_bytes", facts.stored_bytes},
      {"stored", stored},
      {"weight_bytes",
       {{"cpu", facts.cpu.weights}, {"gpu", facts.gpu.weights}}},
      {"cache_bytes_per_token",
       {{"cpu", facts.cpu.cache_per_token},
        {"gpu", facts.gpu.cache_per_token}}},
      {"state_bytes_per_sequence", facts.cpu.state_per_sequence},
      {"tokenizer", facts.tokenizer},
      {"bos_token_id", nullptr},
      {"eos_token_ids", facts.eos_token_ids},
  };
  if (facts.bos_token_id) json["bos_token_id"] = *facts.bos_token_id;
  return json;
}

absl::StatusOr<CapacityFacts> PlanCapacity(const CheckpointFacts& facts,
                                           int64_t memory, int64_t length) {
  if (length > facts.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat("--length is ", length, "; the model supports 1 to ",
                     facts.max_position_embeddings));
  }
  CapacityFacts capacity;
  capacity.memory = memory;
  capacity.length = length;
  RECURVE_ASSIGN_OR_RETURN(capacity.gpu,
                           FitSequences(facts.gpu, memory, length));
  if (memory >= facts.cpu.weights) {
    RECURVE_ASSIGN_OR_RETURN(capacity.cpu,
                             FitSequences(facts.cpu, memory, length));
  }
  return capacity;
}

std::string CapacityText(const CheckpointFacts& facts,
                         const CapacityFacts& capacity) {
  std::string text =
      absl::StrCat("sequences of ", capacity.length, " tokens in ",
                   ExactBytes(capacity.memory), "\n");
  AddLine("on the CPU",
          capacity.cpu ? FitText(facts.cpu, *capacity.cpu)
                       : absl::StrCat("none: the weights alone take ",
                                      ExactBytes(facts.cpu.weights)),
          &text);
  AddLine("on a GPU", FitText(facts.gpu, capacity.gpu), &text);
  absl::StrAppend(
      &text,
      "  Activations and the program itself come on top. The server "
      "runs at most --max-num-seqs of them.\n");
  return text;
}

nlohmann::ordered_json CapacityJson(const CapacityFacts& capacity) {
  return {
      {"memory_bytes", capacity.memory},
      {"length", capacity.length},
      {"cpu", capacity.cpu ? FitJson(*capacity.cpu) : nlohmann::ordered_json()},
      {"gpu", FitJson(capacity.gpu)}};
}

}  // namespace recurve
