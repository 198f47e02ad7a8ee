#include "tests/testing/fake_runner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

constexpr uint64_t kPoison = ~uint64_t{0};
// What a block holds.
constexpr uint64_t kPageBlock = 1;
constexpr uint64_t kSlotBlock = 2;

// Neither 0 nor kPoison.
uint64_t TokenHash(int32_t token, TokenKind kind, int64_t position) {
  const uint64_t what =
      static_cast<uint64_t>(token) * 8 + static_cast<uint64_t>(kind);
  return 1 + (MixBits(MixBits(what) ^ static_cast<uint64_t>(position)) >> 1);
}

bool ContinuesPrompt(TokenKind kind) {
  return kind != TokenKind::kStep && !StartsPrompt(kind);
}

TokenKind Counted(TokenKind kind, const FakeRunnerOptions& options) {
  return options.kinds_matter ? kind : TokenKind::kStep;
}

uint64_t Fold(uint64_t state, uint64_t token_hash) {
  return MixBits(state * 3 + token_hash);
}

void FillLogits(uint64_t hash, int32_t token, const FakeRunnerOptions& options,
                float* logits) {
  for (int64_t v = 0; v < options.vocab_size; ++v) {
    const uint64_t bits = MixBits(hash ^ MixBits(static_cast<uint64_t>(v)));
    logits[v] = static_cast<float>(bits >> 40) * 0x1p-21f;  // [0, 8)
    if (options.printable && (v < 32 || v > 126)) logits[v] = -100.0f;
    if (v == options.broken_token) logits[v] = -100.0f;
    if (options.broken_token >= 0 && token == options.broken_token) {
      logits[v] = options.broken_logit;
    }
  }
}

absl::Status Violation(absl::string_view what) {
  return absl::InternalError(absl::StrCat("fake runner: ", what));
}

}  // namespace

FakeRunner::FakeRunner(FakeRunnerOptions options)
    : options_(std::move(options)),
      cells_((int64_t{options_.num_pages} + 1) * kPageTokens, 0),
      slots_(static_cast<size_t>(options_.num_slots) + 1),
      blocks_(static_cast<size_t>(options_.num_host_blocks) + 1,
              std::vector<uint64_t>(kPageTokens + 1)),
      restored_at_(static_cast<size_t>(options_.num_slots) + 1, 0) {
  info_.family = "fake";
  info_.vocab_size = options_.vocab_size;
  info_.eos_token_ids = options_.eos_token_ids;
  info_.chunk_multiple = options_.chunk_multiple;
  info_.whole_prompts = options_.whole_prompts;
  info_.max_position_embeddings = int64_t{1} << 30;
}

CacheSpec FakeRunner::cache_spec() const {
  return {options_.num_pages, options_.num_slots,
          options_.num_pages == 0 ? 0 : kPageTokens * 8, sizeof(State),
          options_.num_host_blocks};
}

absl::Status FakeRunner::Save(const SavedMemory& memory) {
  if (memory.blocks.size() != memory.pages.size() + 1)
    return Violation("a saved sequence has a block a page and one for a slot");
  for (size_t i = 0; i < memory.pages.size(); ++i) {
    const auto cells = cells_.begin() + memory.pages[i] * kPageTokens;
    std::copy(cells, cells + kPageTokens, blocks_[memory.blocks[i]].begin());
    blocks_[memory.blocks[i]].back() = kPageBlock;
  }
  const State& state = slots_[memory.slot];
  std::vector<uint64_t>& block = blocks_[memory.blocks.back()];
  block[0] = state.fold;
  block[1] = static_cast<uint64_t>(state.tokens_applied);
  block.back() = kSlotBlock;
  return absl::OkStatus();
}

absl::Status FakeRunner::Restore(const SavedMemory& memory) {
  for (size_t i = 0; i < memory.pages.size(); ++i) {
    const std::vector<uint64_t>& block = blocks_[memory.blocks[i]];
    if (block.back() != kPageBlock)
      return Violation("a page was restored that was not saved");
    std::copy(block.begin(), block.begin() + kPageTokens,
              cells_.begin() + memory.pages[i] * kPageTokens);
  }
  const std::vector<uint64_t>& block = blocks_[memory.blocks.back()];
  if (block.back() != kSlotBlock)
    return Violation("a slot was restored that was not saved");
  slots_[memory.slot] = {block[0], static_cast<int64_t>(block[1])};
  restored_at_[memory.slot] = runs_ + options_.restore_steps;
  return absl::OkStatus();
}

absl::Span<char> FakeRunner::HostBlock(int32_t block) {
  std::vector<uint64_t>& words = blocks_[block];
  return {reinterpret_cast<char*>(words.data()),
          words.size() * sizeof(uint64_t)};
}

bool FakeRunner::Restored(int32_t slot) { return runs_ >= restored_at_[slot]; }

absl::Status FakeRunner::ClearPage(int32_t page) {
  std::fill_n(cells_.begin() + page * kPageTokens, kPageTokens, 0);
  return absl::OkStatus();
}
absl::Status FakeRunner::ClearSlot(int32_t slot) {
  slots_[slot] = State();
  return absl::OkStatus();
}
absl::Status FakeRunner::PoisonPage(int32_t page) {
  std::fill_n(cells_.begin() + page * kPageTokens, kPageTokens, kPoison);
  return absl::OkStatus();
}
absl::Status FakeRunner::PoisonSlot(int32_t slot) {
  slots_[slot] = {kPoison, -1};
  return absl::OkStatus();
}

uint64_t& FakeRunner::Cell(const StepBatch& batch, int64_t sequence,
                           int64_t position) {
  const int32_t page = batch.page_table[sequence * batch.page_table_stride +
                                        position / kPageTokens];
  return cells_[page * kPageTokens + position % kPageTokens];
}

absl::Status FakeRunner::CheckShape(const StepBatch& batch) const {
  const auto tokens = static_cast<size_t>(batch.num_tokens());
  const auto sequences = static_cast<size_t>(batch.num_sequences());
  if (tokens == 0 || batch.positions.size() != tokens ||
      batch.row_sequence.size() != tokens || batch.kinds.size() != tokens ||
      batch.query_start.size() != sequences + 1 ||
      batch.query_start.front() != 0 ||
      batch.query_start.back() != batch.num_tokens() ||
      batch.page_table.size() != sequences * batch.page_table_stride) {
    return Violation("the arrays of the batch disagree in size");
  }
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const int32_t row = batch.logit_rows[i];
    if (row < 0 || row >= batch.num_tokens() ||
        (i > 0 && row <= batch.logit_rows[i - 1])) {
      return Violation("logit_rows is not ascending or out of range");
    }
  }
  for (const SampleRequest& sample : batch.samples) {
    if (sample.logit_index < 0 || sample.params == nullptr ||
        sample.logit_index >= static_cast<int64_t>(batch.logit_rows.size())) {
      return Violation("a sample has no logits or no parameters");
    }
  }
  for (size_t i = 0; i < batch.kept.size(); ++i) {
    if (batch.kept[i] < 0 ||
        batch.kept[i] >= static_cast<int64_t>(batch.logit_rows.size()) ||
        (i > 0 && batch.kept[i] <= batch.kept[i - 1])) {
      return Violation("kept rows are not ascending or out of range");
    }
  }
  if (batch.kept.size() > static_cast<size_t>(kMaxKeptRows)) {
    return Violation("too many kept rows");
  }
  return absl::OkStatus();
}

absl::Status FakeRunner::CheckSequence(const StepBatch& batch,
                                       int64_t sequence) const {
  const int32_t begin = batch.query_start[sequence];
  const int32_t end = batch.query_start[sequence + 1];
  if (begin >= end) return Violation("a sequence has no tokens");
  const int32_t slot = batch.slots[sequence];
  if (slot < 1 || slot > options_.num_slots)
    return Violation(absl::StrCat("slot ", slot, " does not exist"));
  for (int32_t row = begin; row < end; ++row) {
    if (batch.row_sequence[row] != sequence)
      return Violation("row_sequence and query_start disagree");
    if (batch.positions[row] != slots_[slot].tokens_applied + (row - begin)) {
      return Violation(
          absl::StrCat("position ", batch.positions[row], " follows ",
                       slots_[slot].tokens_applied + (row - begin), " tokens"));
    }
    if (batch.tokens[row] < 0 || batch.tokens[row] >= options_.vocab_size)
      return Violation("a token is outside the vocabulary");
  }
  return absl::OkStatus();
}

absl::Status FakeRunner::CheckDistinct(const StepBatch& batch) const {
  std::set<int32_t> slots;
  std::map<int32_t, bool> pages;  // whether it is written to
  for (int64_t s = 0; s < batch.num_sequences(); ++s) {
    if (!slots.insert(batch.slots[s]).second)
      return Violation("a slot is used twice in a step");
    if (options_.num_pages == 0) continue;
    const int64_t last = batch.positions[batch.query_start[s + 1] - 1];
    if (last / kPageTokens >= batch.page_table_stride)
      return Violation("the page table is too narrow");
    const int64_t first = batch.positions[batch.query_start[s]];
    for (int64_t i = 0; i <= last / kPageTokens; ++i) {
      const int32_t page = batch.page_table[s * batch.page_table_stride + i];
      if (page < 1 || page > options_.num_pages)
        return Violation(absl::StrCat("page ", page, " does not exist"));
      const bool written = i >= first / kPageTokens;
      const auto [other, only] = pages.emplace(page, written);
      if (!only && (written || other->second))
        return Violation("a page that a step writes to is used twice in it");
    }
  }
  return absl::OkStatus();
}

absl::Status FakeRunner::CheckCut(const StepBatch& batch,
                                  int64_t sequence) const {
  const int32_t begin = batch.query_start[sequence];
  const int64_t position = batch.positions[begin];
  if (position == 0) {
    if (options_.whole_prompts && !StartsPrompt(batch.kinds[begin])) {
      return Violation("a whole prompt is no prompt");
    }
  } else if (ContinuesPrompt(batch.kinds[begin]) &&
             position % options_.chunk_multiple != 0) {
    return Violation(absl::StrCat("a prompt was cut at ", position));
  }
  return absl::OkStatus();
}

absl::Status FakeRunner::ComputeSequence(const StepBatch& batch,
                                         int64_t sequence) {
  State& state = slots_[batch.slots[sequence]];
  const int32_t begin = batch.query_start[sequence];
  if (options_.whole_prompts && batch.positions[begin] == 0) {
    int32_t end = begin + 1;
    while (end < batch.query_start[sequence + 1] &&
           ContinuesPrompt(batch.kinds[end])) {
      ++end;
    }
    state.fold = Fold(state.fold, static_cast<uint64_t>(end - begin));
  }
  for (int32_t row = begin; row < batch.query_start[sequence + 1]; ++row) {
    const int64_t position = batch.positions[row];
    const uint64_t token = TokenHash(
        batch.tokens[row], Counted(batch.kinds[row], options_), position);
    if (options_.num_pages > 0) {
      uint64_t& cell = Cell(batch, sequence, position);
      if (cell != 0) return Violation("a page was not cleared");
      cell = token;
    }
    state.fold = Fold(state.fold, token);
    ++state.tokens_applied;

    const auto wanted =
        std::lower_bound(batch.logit_rows.begin(), batch.logit_rows.end(), row);
    if (wanted == batch.logit_rows.end() || *wanted != row) continue;
    uint64_t hash = 0;
    for (int64_t p = 0; options_.num_pages > 0 && p <= position; ++p) {
      const uint64_t cell = Cell(batch, sequence, p);
      if (cell == 0 || cell == kPoison)
        return Violation("a page was read that its sequence did not write");
      hash = Fold(hash, cell);
    }
    const int64_t index = wanted - batch.logit_rows.begin();
    FillLogits(hash ^ state.fold * 5, batch.tokens[row], options_,
               logits_.data() + index * options_.vocab_size);
  }
  return absl::OkStatus();
}

StepBatch FakeRunner::Feed(const StepBatch& batch) const {
  StepBatch fed = batch;
  for (const StepBatch::Fed& f : batch.fed) {
    // A step that failed has drawn nothing.
    const auto sample = static_cast<size_t>(f.sample);
    fed.tokens[f.row] = sample < sampled_.size() ? sampled_[sample] : 0;
  }
  return fed;
}

absl::Status FakeRunner::Run(const StepBatch& batch, StepOutput* output) {
  if (!batch.fed.empty()) return Violation("a step is fed by one that is done");
  return Compute(batch, output);
}

absl::Status FakeRunner::Launch(const StepBatch& batch) {
  if (!options_.runs_ahead) return ModelRunner::Launch(batch);
  if (launched_.size() >= 2) return Violation("three steps are under way");
  if (!batch.fed.empty() && launched_.empty())
    return Violation("a step is fed by one that is done");
  Launched& step = launched_.emplace_back();
  step.status = Compute(Feed(batch), &step.output);
  step.logits = logits_;
  step.kept = batch.kept;
  return absl::OkStatus();
}

absl::Status FakeRunner::Wait(StepOutput* output) {
  if (!options_.runs_ahead) return ModelRunner::Wait(output);
  Launched step = std::move(launched_.front());
  launched_.pop_front();
  waited_logits_ = std::move(step.logits);
  *output = std::move(step.output);
  if (!output->logits.empty()) output->logits = waited_logits_;
  if (step.status.ok()) output->kept = Kept(waited_logits_, step.kept);
  return step.status;
}

std::vector<absl::Span<const float>> FakeRunner::Kept(
    absl::Span<const float> logits, absl::Span<const int32_t> rows) const {
  std::vector<absl::Span<const float>> kept;
  for (const int32_t row : rows) {
    kept.push_back(
        logits.subspan(row * options_.vocab_size, options_.vocab_size));
  }
  return kept;
}

absl::Status FakeRunner::Compute(const StepBatch& batch, StepOutput* output) {
  ++runs_;
  if (options_.on_run) options_.on_run(batch);
  if (options_.step_time.count() > 0)
    std::this_thread::sleep_for(options_.step_time);
  if (runs_ == options_.fail_on_run)
    return absl::InternalError("the fake device broke");
  RECURVE_RETURN_IF_ERROR(CheckShape(batch));
  for (int64_t s = 0; s < batch.num_sequences(); ++s) {
    RECURVE_RETURN_IF_ERROR(CheckSequence(batch, s));
    RECURVE_RETURN_IF_ERROR(CheckCut(batch, s));
  }
  RECURVE_RETURN_IF_ERROR(CheckDistinct(batch));
  logits_.resize(batch.logit_rows.size() * options_.vocab_size);
  for (int64_t s = 0; s < batch.num_sequences(); ++s)
    RECURVE_RETURN_IF_ERROR(ComputeSequence(batch, s));
  if (options_.device_seconds)
    output->device_seconds = options_.device_seconds(batch);
  output->logits = logits_;
  output->kept = Kept(logits_, batch.kept);
  output->logits_status = absl::OkStatus();
  if (runs_ == options_.no_logits_on_run && batch.wants_logits) {
    output->logits = {};
    output->logits_status =
        absl::ResourceExhaustedError("the fake host has no memory for logits");
  }
  output->samples.clear();
  sampled_.clear();
  for (const SampleRequest& sample : batch.samples) {
    const auto row = absl::MakeConstSpan(logits_).subspan(
        sample.logit_index * options_.vocab_size, options_.vocab_size);
    std::vector<int32_t> history(sample.output.begin(), sample.output.end());
    for (const StepBatch::Fed& fed : batch.fed) {
      if (fed.row == batch.logit_rows[sample.logit_index])
        history.push_back(batch.tokens[fed.row]);
    }
    if (history.size() != sample.index)
      return Violation("a sample's index is not that of its token");
    output->samples.push_back(SampleRow(
        {row, sample.prompt, history, sample.index, sample.params}, &scratch_));
    const auto& result = output->samples.back();
    sampled_.push_back(result.ok() ? result->token : 0);
  }
  return absl::OkStatus();
}

std::vector<float> FakeLogits(absl::Span<const int32_t> tokens,
                              absl::Span<const TokenKind> kinds,
                              const FakeRunnerOptions& options) {
  uint64_t fold = 0;  // of the cells and of the state alike
  for (size_t i = 0; i < tokens.size(); ++i) {
    fold = Fold(fold, TokenHash(tokens[i], kinds[i], static_cast<int64_t>(i)));
  }
  std::vector<float> logits(options.vocab_size);
  FillLogits((options.num_pages > 0 ? fold : 0) ^ fold * 5, tokens.back(),
             options, logits.data());
  return logits;
}

}  // namespace recurve
