#include "client/loadgen/bench_workload.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/loadgen/bench_random.h"

namespace recurve {
namespace {

// Separates the draws of a conversation's length from those of its requests.
constexpr uint64_t kTurnsPart = (1 << 24) - 1;
// The draws of a group's prefix.
constexpr uint64_t kPrefixPart = (1 << 24) - 2;

// Spreads cancellations evenly: of the first n requests, n * fraction (rounded
// down) are cancelled.
bool IsCancelled(uint64_t index, double fraction) {
  // The small term keeps 0.1 * 10 from falling just below 1.
  const auto cancelled_before = [&](uint64_t n) {
    return std::floor(static_cast<double>(n) * fraction + 1e-9);
  };
  return cancelled_before(index + 1) > cancelled_before(index);
}

// Requests that the last one of a conversation goes on from.
uint64_t RequestsBefore(const WorkloadConfig& config) {
  return config.turns.max() * (uint64_t{config.branch_levels} + 1) - 1;
}

uint64_t LongestPrefix(const WorkloadConfig& config) {
  return config.prefix_groups > 0 ? config.prefix_tokens.max() : 0;
}

// Including all previous turns of its conversation.
uint64_t LongestPrompt(const WorkloadConfig& config) {
  uint64_t prompt = config.prompt_tokens.max();
  if (config.trace != nullptr) {
    prompt = 0;
    for (const TraceEntry& entry : *config.trace) {
      prompt = std::max<uint64_t>(prompt, entry.prompt_tokens);
    }
  }
  return LongestPrefix(config) + prompt +
         RequestsBefore(config) *
             (config.turn_tokens.max() + uint64_t{config.output_tokens.max()});
}

}  // namespace

absl::StatusOr<Workload> Workload::Create(const WorkloadConfig& config,
                                          const v1::ModelInfo& model) {
  uint64_t prompt = config.prompt_tokens.max();
  uint64_t output = config.output_tokens.max();
  if (config.trace != nullptr) {
    prompt = output = 0;
    for (const TraceEntry& entry : *config.trace) {
      if (uint64_t{entry.prompt_tokens} + entry.output_tokens >
          prompt + output) {
        prompt = entry.prompt_tokens;
        output = entry.output_tokens;
      }
    }
  }
  const uint64_t later = RequestsBefore(config);
  const uint64_t prefix = LongestPrefix(config);
  const uint64_t longest =
      prefix + prompt + output +
      later * (config.turn_tokens.max() + uint64_t{config.output_tokens.max()});
  if (longest > model.max_model_len()) {
    const std::string turns =
        later == 0 ? ""
                   : absl::StrCat(" + ", later, " more turns of ",
                                  config.turn_tokens.max(), " + ",
                                  config.output_tokens.max());
    return absl::InvalidArgumentError(absl::StrCat(
        config.trace != nullptr ? "--trace: "
        : prefix > 0 ? "--prefix-tokens, --prompt-tokens and --output-tokens: "
                     : "--prompt-tokens and --output-tokens: ",
        "up to ", prefix > 0 ? absl::StrCat(prefix, " + ") : "", prompt, " + ",
        output, turns, " = ", longest,
        " tokens, but the server's max_model_len is ", model.max_model_len()));
  }
  const uint64_t longest_prompt = LongestPrompt(config);
  if (model.has_max_prompt_tokens() &&
      longest_prompt > model.max_prompt_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        prefix > 0 ? "--prefix-tokens, " : "",
        config.trace != nullptr ? "--trace: "
        : later > 0             ? "--prompt-tokens, --turns, --turn-tokens and "
                                  "--output-tokens: "
                                : "--prompt-tokens: ",
        "prompts of up to ", longest_prompt,
        " tokens, but the model looks at a prompt as a whole, and the server's "
        "max_prompt_tokens is ",
        model.max_prompt_tokens()));
  }
  Workload workload(config, model);
  if (workload.special_.size() >= workload.vocab_size_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model's vocabulary of ", workload.vocab_size_,
        " ids has none that is not a beginning- or end-of-sequence token"));
  }
  return workload;
}

Workload::Workload(const WorkloadConfig& config, const v1::ModelInfo& model)
    : config_(config), vocab_size_(model.vocab_size()) {
  if (model.has_bos_token_id()) {
    bos_ = model.bos_token_id();
    special_.push_back(*bos_);
  }
  special_.insert(special_.end(), model.eos_token_ids().begin(),
                  model.eos_token_ids().end());
  std::sort(special_.begin(), special_.end());
  special_.erase(std::unique(special_.begin(), special_.end()), special_.end());
  // An id outside the vocabulary does not reduce it.
  special_.erase(
      std::lower_bound(special_.begin(), special_.end(), vocab_size_),
      special_.end());
}

uint32_t Workload::Turns(uint64_t index) const {
  BenchDraws draws(config_.seed, index, kTurnsPart);
  return config_.turns.Draw(&draws);
}

RequestTree Workload::Tree(uint64_t index) const {
  return RequestTree(Turns(index), config_.branches, config_.branch_levels);
}

uint64_t Workload::MostOpen() const {
  return RequestTree::CountLeaves(config_.branches, config_.branch_levels);
}

void Workload::Fill(uint64_t size, BenchDraws* draws, Ids* ids) const {
  const uint32_t plain = vocab_size_ - static_cast<uint32_t>(special_.size());
  while (static_cast<uint64_t>(ids->size()) < size) {
    uint32_t id = draws->Below(plain);
    for (const uint32_t skipped : special_) id += id >= skipped ? 1 : 0;
    ids->Add(id);
  }
}

void Workload::AddPrefix(uint64_t index, Ids* ids) const {
  const uint64_t run = index / kIndicesPerRun * kIndicesPerRun;
  const uint64_t group = index % kIndicesPerRun % config_.prefix_groups;
  BenchDraws draws(config_.seed, run + group, kPrefixPart);
  Fill(config_.prefix_tokens.Draw(&draws), &draws, ids);
}

WorkItem Workload::MakeTurn(uint64_t index, uint32_t turn,
                            const std::vector<uint32_t>& history) const {
  BenchDraws draws(config_.seed, index, turn);
  WorkItem item;
  const LengthDistribution& added =
      turn == 0 ? config_.prompt_tokens : config_.turn_tokens;
  uint64_t added_tokens = added.Draw(&draws);
  uint32_t output_tokens = config_.output_tokens.Draw(&draws);
  if (config_.trace != nullptr) {
    const TraceEntry& entry = (*config_.trace)[index % config_.trace->size()];
    added_tokens = entry.prompt_tokens;
    output_tokens = entry.output_tokens;
  }
  const uint32_t cancel_word = draws.Word();
  const uint32_t sampling_seed = draws.Word();

  auto* ids = item.request.mutable_prompt_ids()->mutable_ids();
  ids->Reserve(
      static_cast<int>(LongestPrefix(config_) + history.size() + added_tokens));
  ids->Add(history.begin(), history.end());
  if (turn == 0 && bos_.has_value()) ids->Add(*bos_);
  if (turn == 0 && config_.prefix_groups > 0) AddPrefix(index, ids);
  const RequestTree tree = Tree(index);
  if (config_.snapshot_prefix && (turn == 0 || tree.BeginsBranch(turn))) {
    item.request.add_snapshot_at(ids->size());
  }
  // The beginning-of-sequence token counts as one of the first part.
  const bool bos_counts = turn == 0 && config_.prefix_groups == 0;
  Fill((bos_counts ? 0 : ids->size()) + added_tokens, &draws, ids);

  item.request.set_cache_key(config_.cache_key);
  auto* stopping = item.request.mutable_stopping();
  stopping->set_max_new_tokens(output_tokens);
  stopping->set_ignore_eos(config_.ignore_eos);
  if (config_.temperature.has_value()) {
    item.request.mutable_sampling()->set_temperature(*config_.temperature);
    item.request.mutable_sampling()->set_seed(sampling_seed);
  }
  if (IsCancelled(index, config_.cancel_fraction) && turn + 1 == tree.size()) {
    const uint32_t choices = std::max<uint32_t>(1, output_tokens - 1);
    item.cancel_after_tokens =
        1 + static_cast<uint32_t>((uint64_t{cancel_word} * choices) >> 32);
  }
  return item;
}

}  // namespace recurve
