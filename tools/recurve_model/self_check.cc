#include "tools/recurve_model/self_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/model_loader.h"
#include "engine/models/registry.h"
#include "engine/program/step_runs.h"
#include "kv_cache/cache_spec.h"
#include "tools/recurve_model/describe.h"

namespace recurve {
namespace {

// More than a page, and not a multiple of any tile.
constexpr int64_t kPromptTokens = kPageTokens + 7;

// The same in every run, spread over the vocabulary.
int32_t PromptToken(int64_t position, int64_t vocab_size) {
  const uint64_t word =
      Philox4x32(0, static_cast<uint64_t>(position), 0).front();
  return static_cast<int32_t>(word % static_cast<uint64_t>(vocab_size));
}

// Tokens [begin, end) of the prompt, as a batch of one sequence that owns
// `slot` and the pages from `first_page` on.
StepBatch MakeBatch(int64_t vocab_size, int64_t begin, int64_t end,
                    int64_t pages, int32_t first_page, int32_t slot) {
  StepBatch batch;
  for (int64_t p = begin; p < end; ++p) {
    batch.tokens.push_back(PromptToken(p, vocab_size));
    batch.positions.push_back(p);
    batch.row_sequence.push_back(0);
    batch.logit_rows.push_back(static_cast<int32_t>(p - begin));
  }
  batch.query_start = {0, static_cast<int32_t>(end - begin)};
  for (int64_t i = 0; i < pages; ++i)
    batch.page_table.push_back(first_page + static_cast<int32_t>(i));
  batch.page_table_stride = pages;
  batch.slots = {slot};
  CutRuns(&batch);
  return batch;
}

// `whole` and `single` are the logits of one position.
absl::Status CompareRows(int64_t position, absl::Span<const float> whole,
                         absl::Span<const float> single) {
  for (size_t token = 0; token < whole.size(); ++token) {
    if (!std::isfinite(whole[token])) {
      return absl::InternalError(
          absl::StrCat("the logit of token ", token, " at position ", position,
                       " is ", whole[token], "; expected a finite number"));
    }
    if (std::bit_cast<uint32_t>(whole[token]) !=
        std::bit_cast<uint32_t>(single[token])) {
      return absl::InternalError(absl::StrFormat(
          "the logit of token %d at position %d is %.9g when the prompt runs "
          "in one chunk and %.9g token by token; expected the same bits",
          token, position, whole[token], single[token]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckChunking(ModelRunner& runner, int64_t length) {
  const int64_t vocab = runner.info().vocab_size;
  const int64_t pages = PagesFor(length, runner.cache_spec());
  StepOutput output;
  const auto run = [&](int64_t begin, int64_t end,
                       bool second) -> absl::Status {
    RECURVE_RETURN_IF_ERROR(runner.Run(
        MakeBatch(vocab, begin, end, pages,
                  static_cast<int32_t>(second ? 1 + pages : 1), second ? 2 : 1),
        &output));
    return output.logits_status;
  };
  // A model that processes prompts as a whole needs one before the part that is
  // compared.
  const int64_t first = runner.info().whole_prompts ? length / 2 : 0;
  for (const bool second : {false, true}) {
    if (first > 0) RECURVE_RETURN_IF_ERROR(run(0, first, second));
  }
  RECURVE_RETURN_IF_ERROR(run(first, length, false));
  const std::vector<float> whole(output.logits.begin(), output.logits.end());
  for (int64_t p = first; p < length; ++p) {
    RECURVE_RETURN_IF_ERROR(run(p, p + 1, true));
    RECURVE_RETURN_IF_ERROR(
        CompareRows(p,
                    absl::MakeConstSpan(whole).subspan(
                        static_cast<size_t>((p - first) * vocab),
                        static_cast<size_t>(vocab)),
                    output.logits));
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const std::string& dir,
                             const FamilyOptions& family,
                             const std::string& tokenizer,
                             const CheckReport& report) {
  int64_t length = 0;
  {
    RECURVE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                             Checkpoint::Open(dir));
    report("files",
           absl::StrCat(checkpoint.names().size(), " tensors, well formed"));
    RECURVE_ASSIGN_OR_RETURN(const ModelDefinition model,
                             ReadModel(checkpoint, family));
    const CheckpointFacts facts = Describe(checkpoint, model);
    report(
        "model",
        absl::StrCat("family ", facts.family, facts.variant.empty() ? "" : " ",
                     facts.variant, ", ", CompressRuns(facts.mixers), ", ",
                     facts.parameters, " parameters, every value finite"));
    length = std::min(kPromptTokens, model.max_position_embeddings);
  }
  ModelOptions options;
  options.path = dir;
  options.family = family;
  options.tokenizer = tokenizer;
  options.device = "cpu";
  options.kv_pages = 2 * ((length + kPageTokens - 1) / kPageTokens);
  EngineOptions engine;
  engine.max_num_seqs = 2;
  engine.max_model_len = length;
  engine.max_num_batched_tokens = std::max<int64_t>(length, 2);
  engine.max_chunk_tokens = engine.max_num_batched_tokens;
  RECURVE_ASSIGN_OR_RETURN(const LoadedModel loaded,
                           LoadModel(options, &engine));
  const ModelInfo& info = loaded.runner->info();
  for (const std::string& remark : info.remarks) report("note", remark);
  report("load",
         absl::StrCat("on ", info.device, ", ", info.weight_dtype, " weights, ",
                      HumanBytes(static_cast<int64_t>(info.weight_bytes)),
                      ", tokenizer ",
                      loaded.tokenizer == nullptr
                          ? "none"
                          : std::string(loaded.tokenizer->name())));
  RECURVE_RETURN_IF_ERROR(CheckChunking(*loaded.runner, length));
  report("logits", absl::StrCat(length,
                                " positions, in one chunk and token by token: "
                                "finite and equal bit for bit"));
  return absl::OkStatus();
}

}  // namespace recurve
