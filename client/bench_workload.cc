#include "client/bench_workload.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace recurve {
namespace {

// The draws of one request: a stream of random words of its own.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t index) : seed_(seed), index_(index) {}

  // Uniform in [0, count); count >= 1. Off by at most count / 2^32, which no
  // load test can see.
  uint32_t Below(uint32_t count) {
    return static_cast<uint32_t>((uint64_t{Word()} * count) >> 32);
  }
  uint32_t In(CountRange range) {
    return range.min +
           static_cast<uint32_t>(
               (uint64_t{Word()} * (uint64_t{range.max} - range.min + 1)) >>
               32);
  }
  uint32_t Word() {
    const uint64_t block = next_ / 4;
    if (next_ % 4 == 0) words_ = Philox4x32(seed_, block, index_);
    return words_[next_++ % 4];
  }

 private:
  const uint64_t seed_;
  const uint64_t index_;
  uint64_t next_ = 0;
  std::array<uint32_t, 4> words_ = {};
};

// Spreads cancellations evenly: of the first n requests, n * fraction (rounded
// down) are cancelled.
bool IsCancelled(uint64_t index, double fraction) {
  // The small term keeps 0.1 * 10 from falling just below 1.
  const auto cancelled_before = [&](uint64_t n) {
    return std::floor(static_cast<double>(n) * fraction + 1e-9);
  };
  return cancelled_before(index + 1) > cancelled_before(index);
}

}  // namespace

absl::StatusOr<Workload> Workload::Create(const WorkloadConfig& config,
                                          const v1::ModelInfo& model) {
  const uint64_t longest =
      uint64_t{config.prompt_tokens.max} + config.output_tokens.max;
  if (longest > model.max_model_len()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--prompt-tokens and --output-tokens: up to ", config.prompt_tokens.max,
        " + ", config.output_tokens.max, " = ", longest,
        " tokens, but the server's max_model_len is ", model.max_model_len()));
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
  // An id outside the vocabulary takes no room in it.
  special_.erase(
      std::lower_bound(special_.begin(), special_.end(), vocab_size_),
      special_.end());
}

WorkItem Workload::Make(uint64_t index) const {
  Draws draws(config_.seed, index);
  WorkItem item;
  const uint32_t prompt_tokens = draws.In(config_.prompt_tokens);
  const uint32_t output_tokens = draws.In(config_.output_tokens);
  const uint32_t cancel_word = draws.Word();
  const uint32_t sampling_seed = draws.Word();

  auto* ids = item.request.mutable_prompt_ids()->mutable_ids();
  ids->Reserve(static_cast<int>(prompt_tokens));
  if (bos_.has_value()) ids->Add(*bos_);
  const uint32_t plain = vocab_size_ - static_cast<uint32_t>(special_.size());
  while (ids->size() < prompt_tokens) {
    uint32_t id = draws.Below(plain);
    for (const uint32_t skipped : special_) id += id >= skipped ? 1 : 0;
    ids->Add(id);
  }

  auto* stopping = item.request.mutable_stopping();
  stopping->set_max_new_tokens(output_tokens);
  stopping->set_ignore_eos(config_.ignore_eos);
  if (config_.temperature.has_value()) {
    item.request.mutable_sampling()->set_temperature(*config_.temperature);
    item.request.mutable_sampling()->set_seed(sampling_seed);
  }
  if (IsCancelled(index, config_.cancel_fraction)) {
    const uint32_t choices = std::max<uint32_t>(1, output_tokens - 1);
    item.cancel_after_tokens =
        1 + static_cast<uint32_t>((uint64_t{cancel_word} * choices) >> 32);
  }
  return item;
}

}  // namespace recurve
