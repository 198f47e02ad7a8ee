#include "server/services/state_transfer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/program/arithmetic.h"
#include "kv_cache/cache_spec.h"

namespace recurve {
namespace {

static_assert(std::endian::native == std::endian::little);

absl::StatusOr<LogitsRow> LogitsOf(const std::string& bytes, int64_t vocab) {
  if (bytes.empty()) return nullptr;
  std::vector<float> logits(static_cast<size_t>(vocab));
  const size_t expected = logits.size() * sizeof(float);
  if (bytes.size() != expected) {
    return absl::FailedPreconditionError(
        absl::StrCat("last_logits has ", bytes.size(), " bytes; ", vocab,
                     " logits have ", expected));
  }
  std::memcpy(logits.data(), bytes.data(), expected);
  return std::make_shared<const std::vector<float>>(std::move(logits));
}

}  // namespace

v1::StateFingerprint FingerprintOf(const Engine& engine,
                                   const Fingerprint& loaded) {
  const CacheSpec& spec = engine.cache_spec();
  const ModelInfo& model = engine.model();
  v1::StateFingerprint out;
  out.set_model(loaded.model);
  out.set_arithmetic(kArithmeticVersion);
  out.set_device(loaded.device);
  out.set_weight_dtype(model.weight_dtype);
  out.set_state_dtype(model.state_dtype);
  out.set_kv_dtype(model.kv_dtype);
  out.set_layout(kLayoutVersion);
  out.set_page_bytes(static_cast<uint64_t>(spec.page_bytes));
  out.set_slot_bytes(static_cast<uint64_t>(spec.slot_bytes));
  out.set_block_bytes(static_cast<uint64_t>(HostBlockBytes(spec)));
  out.set_page_tokens(kPageTokens);
  return out;
}

absl::StatusOr<SequenceState> CheckedState(const v1::StateHeader& header,
                                           const v1::StateFingerprint& ours,
                                           const Engine& engine) {
  RECURVE_RETURN_IF_ERROR(CheckFingerprint(header.fingerprint(), ours));
  const RequestLimits& limits = engine.limits();
  SequenceState state;
  for (const uint32_t id : header.token_ids()) {
    if (id >= limits.vocab_size) {
      return absl::FailedPreconditionError(absl::StrCat(
          "token_ids[", state.tokens.size(), "] is ", id,
          "; the vocabulary has ids 0 to ", limits.vocab_size - 1));
    }
    state.tokens.push_back(static_cast<int32_t>(id));
  }
  for (const char kind : header.token_kinds()) {
    state.kinds.push_back(static_cast<TokenKind>(kind));
  }
  RECURVE_RETURN_IF_ERROR(ValidateState(state, limits));
  const auto computed = static_cast<int64_t>(header.computed_tokens());
  const int64_t blocks =
      computed == 0 ? 0 : HostBlocksFor(computed, engine.cache_spec());
  if (static_cast<int64_t>(header.num_blocks()) != blocks) {
    return absl::FailedPreconditionError(
        absl::StrCat("num_blocks is ", header.num_blocks(), "; ", computed,
                     " computed tokens take ", blocks));
  }
  RECURVE_ASSIGN_OR_RETURN(state.last_row,
                           LogitsOf(header.last_logits(), limits.vocab_size));
  return state;
}

absl::StatusOr<std::unique_ptr<StateExport>> StateExport::Make(
    const Engine& engine, const v1::StateFingerprint& fingerprint,
    StateStore::Found found, const std::string& tenant) {
  std::unique_ptr<StateExport> made(new StateExport);
  const SequenceState& state = *found.state;
  made->spec_ = engine.cache_spec();
  RECURVE_ASSIGN_OR_RETURN(made->blocks_, engine.BlocksOf(state));
  v1::StateHeader header;
  *header.mutable_fingerprint() = fingerprint;
  header.mutable_token_ids()->Add(state.tokens.begin(), state.tokens.end());
  header.mutable_token_kinds()->reserve(state.kinds.size());
  for (const TokenKind kind : state.kinds) {
    header.mutable_token_kinds()->push_back(static_cast<char>(kind));
  }
  header.set_computed_tokens(static_cast<uint64_t>(state.computed.tokens));
  header.set_num_blocks(made->blocks_.size());
  if (state.last_row != nullptr) {
    header.set_last_logits(state.last_row->data(),
                           state.last_row->size() * sizeof(float));
  }
  if (found.info.seed) header.set_seed(*found.info.seed);
  header.set_name(found.info.name);
  header.set_tenant(tenant);
  made->state_ = std::move(found.state);
  RECURVE_ASSIGN_OR_RETURN(
      StateWriter writer,
      StateWriter::Make(header, [made = made.get()](int64_t index) {
        return made->Block(index);
      }));
  made->writer_.emplace(std::move(writer));
  return made;
}

absl::Span<const char> StateExport::Block(int64_t index) {
  const absl::Span<const char> block = blocks_[index];
  const int64_t pages = PagesFor(state_->computed.tokens, spec_);
  if (index < pages) return block;
  // Behind the slot is what the block held before, maybe of another tenant.
  const auto bytes = static_cast<int64_t>(block.size());
  const int64_t used = std::min(
      bytes, spec_.slot_bytes - (index - pages) * HostBlockBytes(spec_));
  if (used == bytes) return block;
  tail_.assign(block.data(), used);
  tail_.resize(bytes);
  return tail_;
}

absl::Status StateImport::Append(absl::string_view bytes) {
  RECURVE_RETURN_IF_ERROR(Begin());
  return reader_.Append(bytes);
}

int64_t StateImport::MaxHeaderBytes(const Engine& engine) {
  // An id has up to 5 bytes, a kind one.
  constexpr int64_t kTokenBytes = 6;
  constexpr int64_t kLogitBytes = sizeof(float);
  constexpr int64_t kOtherBytes = 8192;
  return std::min(kMaxStateHeaderBytes,
                  kTokenBytes * engine.limits().max_model_len +
                      kLogitBytes * engine.limits().vocab_size + kOtherBytes);
}

void StateImport::TakeMemory(const std::function<void(absl::Status)>& done) {
  asked_ = true;
  if (absl::Status status = engine_->CheckStates(); !status.ok()) {
    return done(status);
  }
  absl::StatusOr<SequenceState> state =
      CheckedState(*header_, *fingerprint_, *engine_);
  if (!state.ok()) return done(state.status());
  const v1::StateHeader& header = *header_;
  const auto bytes = static_cast<int64_t>(header.num_blocks() *
                                          header.fingerprint().block_bytes());
  if (absl::Status status = engine_->states().TakeRoom(owner_, bytes);
      !status.ok()) {
    return done(status);
  }
  room_ = bytes;
  engine_->MakeState(*std::move(state),
                     static_cast<int64_t>(header.computed_tokens()),
                     [this, done](absl::StatusOr<SequenceStatePtr> made) {
                       const absl::Status status = made.status();
                       if (made.ok()) state_ = *std::move(made);
                       done(status);
                     });
}

absl::Status StateImport::Begin() {
  if (begun_ || state_ == nullptr) return absl::OkStatus();
  begun_ = true;
  RECURVE_ASSIGN_OR_RETURN(blocks_, engine_->BlocksOf(*state_));
  return reader_.Resume([this](int64_t index) { return blocks_[index]; });
}

absl::StatusOr<SequenceStatePtr> StateImport::Finish() {
  RECURVE_RETURN_IF_ERROR(Begin());
  RECURVE_RETURN_IF_ERROR(reader_.Finish());
  GiveRoom();
  return std::move(state_);
}

void StateImport::GiveRoom() {
  if (room_ > 0) engine_->states().GiveRoom(owner_, room_);
  room_ = 0;
}

}  // namespace recurve
