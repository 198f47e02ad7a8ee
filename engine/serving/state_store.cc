#include "engine/serving/state_store.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

// Unguessable: knowing one must not help to find another's.
std::string NewStateId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x%08x%08x", device(), device(), device(),
                         device());
}

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
         c == '_' || c == '.';
}

bool LooksLikeId(absl::string_view name) {
  return name.size() == 32 && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

// Ids of the blocks that a state holds; those of `before` may be among them.
template <typename F>
void ForEachBlock(const SequenceState& state, F f) {
  for (const SnapshotPrefix* part : {&state.computed, &state.before}) {
    if (part->empty()) continue;
    for (const int32_t block : part->snapshot->block_ids()) f(block);
  }
}

int64_t TokenBytes(const SequenceState& state) {
  const size_t row = state.last_row == nullptr ? 0 : state.last_row->size();
  return static_cast<int64_t>(state.tokens.size() *
                                  (sizeof(int32_t) + sizeof(TokenKind)) +
                              row * sizeof(float));
}

}  // namespace

absl::Status ValidateStateOptions(const StateOptions& options,
                                  absl::string_view prefix) {
  const std::string& name = options.name;
  if (name.size() > kMaxStateNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "name has ", name.size(), " bytes; at most ",
                     kMaxStateNameBytes, " are allowed"));
  }
  for (size_t i = 0; i < name.size(); ++i) {
    if (IsNameCharacter(name[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        prefix, "name has the byte ", static_cast<unsigned char>(name[i]),
        " at ", i, "; letters, digits, '-', '_' and '.' are allowed"));
  }
  if (LooksLikeId(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "name is ", name,
                     ", which could be an id: 32 hexadecimal digits"));
  }
  if (!options.ttl_seconds) return absl::OkStatus();
  if (options.pinned) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "ttl_seconds is ", *options.ttl_seconds, " and ",
                     prefix, "pinned is true; what is pinned has no end"));
  }
  // Also refuses what is not a number.
  if (!(*options.ttl_seconds > 0 && *options.ttl_seconds <= kMaxStateTtl)) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "ttl_seconds is ", *options.ttl_seconds,
                     "; expected above 0, at most ", kMaxStateTtl));
  }
  return absl::OkStatus();
}

StateStore::StateStore(int64_t max_bytes, int64_t block_bytes,
                       std::function<void()> on_change)
    : max_bytes_(max_bytes),
      block_bytes_(block_bytes),
      on_change_(std::move(on_change)) {}

int64_t StateStore::Alone(const SequenceState& state) const {
  return More(Bytes(), state);
}

int64_t StateStore::More(const Bytes& bytes, const SequenceState& state) const {
  if (bytes.entries.contains(&state)) return kEntryBytes;
  Bytes own;
  int64_t more = kEntryBytes + TokenBytes(state);
  ForEachBlock(state, [&](int32_t block) {
    if (bytes.blocks.contains(block) || own.blocks[block]++ > 0) return;
    more += block_bytes_;
  });
  return more;
}

void StateStore::Count(Bytes& bytes, const SequenceState& state,
                       bool add) const {
  bytes.states += add ? 1 : -1;
  if (add) {
    bytes.bytes += More(bytes, state);
    if (bytes.entries[&state]++ > 0) return;
    ForEachBlock(state, [&](int32_t block) { ++bytes.blocks[block]; });
    return;
  }
  const auto entry = bytes.entries.find(&state);
  if (--entry->second == 0) {
    bytes.entries.erase(entry);
    ForEachBlock(state, [&](int32_t block) {
      const auto holders = bytes.blocks.find(block);
      if (--holders->second == 0) bytes.blocks.erase(holders);
    });
  }
  bytes.bytes -= More(bytes, state);
}

absl::Status StateStore::CheckRoomLocked(const StateOwner& owner,
                                         int64_t of_owner,
                                         int64_t of_all) const {
  const auto of_flow = of_flow_.find(owner.flow);
  const int64_t own = of_flow == of_flow_.end() ? 0 : of_flow->second.bytes;
  if (owner.max_bytes > 0 && own + of_owner > owner.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the state takes ", of_owner, " bytes; the tenant's states have ", own,
        " of ", owner.max_bytes, "; release some"));
  }
  if (all_.bytes + of_all > max_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the state takes ", of_all, " bytes; those of the server have ",
        all_.bytes, " of ", max_bytes_, " (--state-bytes); release some"));
  }
  return absl::OkStatus();
}

absl::Status StateStore::TakeRoom(const StateOwner& owner, int64_t bytes) {
  MutexLock lock(&mu_);
  ExpireLocked();
  RECURVE_RETURN_IF_ERROR(CheckRoomLocked(owner, bytes, bytes));
  for (Bytes* of : {&all_, &of_flow_[owner.flow]}) {
    of->bytes += bytes;
    of->taken += bytes;
  }
  return absl::OkStatus();
}

void StateStore::GiveRoom(const StateOwner& owner, int64_t bytes) {
  MutexLock lock(&mu_);
  for (Bytes* of : {&all_, &of_flow_[owner.flow]}) {
    of->bytes -= bytes;
    of->taken -= bytes;
  }
}

absl::Status StateStore::CheckNameLocked(uint32_t flow,
                                         absl::string_view name) const {
  if (name.empty()) return absl::OkStatus();
  const auto taken = names_.find({flow, std::string(name)});
  if (taken == names_.end()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("name is ", name, ", which the state ", taken->second,
                   " has; release that first"));
}

absl::StatusOr<StateInfo> StateStore::AddLocked(const StateOwner& owner,
                                                SequenceStatePtr state,
                                                const StateOptions& options,
                                                std::optional<uint64_t> seed,
                                                std::string id) {
  RECURVE_RETURN_IF_ERROR(CheckNameLocked(owner.flow, options.name));
  const int64_t own = of_flow_[owner.flow].states;
  if (own >= kMaxStatesOfOwner || all_.states >= kMaxStates) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", own, " states of ", kMaxStatesOfOwner,
                     " that a tenant may have, and ", all_.states, " of ",
                     kMaxStates, " that the server may have; release some"));
  }
  RECURVE_RETURN_IF_ERROR(CheckRoomLocked(
      owner, More(of_flow_[owner.flow], *state), More(all_, *state)));
  if (id.empty()) {
    do id = NewStateId();
    while (entries_.contains(id));
  } else if (entries_.contains(id)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the id ", id, " is taken"));
  }
  const auto now = Clock::now();
  Entry entry{id,
              owner.flow,
              options.name,
              std::move(state),
              seed,
              options.pinned,
              /*stored=*/false,
              options.ttl_seconds.value_or(kDefaultStateTtl),
              next_number_++,
              now,
              now,
              options.parent};
  Count(all_, *entry.state, /*add=*/true);
  Count(of_flow_[owner.flow], *entry.state, /*add=*/true);
  if (!entry.name.empty()) names_[{entry.flow, entry.name}] = id;
  const StateInfo info = InfoOf(entry);
  entries_.emplace(std::move(id), std::move(entry));
  if (on_change_) on_change_();
  return info;
}

absl::StatusOr<StateInfo> StateStore::Add(const StateOwner& owner,
                                          SequenceStatePtr state,
                                          const StateOptions& options,
                                          std::optional<uint64_t> seed,
                                          std::string id) {
  MutexLock lock(&mu_);
  ExpireLocked();
  return AddLocked(owner, std::move(state), options, seed, std::move(id));
}

const StateStore::Entry* StateStore::Find(uint32_t flow,
                                          absl::string_view key) const {
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    const auto name = names_.find({flow, std::string(key)});
    if (name == names_.end()) return nullptr;
    found = entries_.find(name->second);
  }
  const Entry& entry = found->second;
  if (entry.flow != flow || IsOver(entry, Clock::now())) return nullptr;
  return &entry;
}

absl::StatusOr<StateStore::Entry*> StateStore::Need(uint32_t flow,
                                                    absl::string_view key) {
  const Entry* entry = Find(flow, key);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "there is no state '", key.substr(0, kMaxStateNameBytes),
        "'; it was released, its time to live passed, or it never was"));
  }
  return &entries_.find(entry->id)->second;
}

absl::StatusOr<StateStore::Found> StateStore::Use(uint32_t flow,
                                                  absl::string_view key) {
  MutexLock lock(&mu_);
  RECURVE_ASSIGN_OR_RETURN(Entry * entry, Need(flow, key));
  entry->used = Clock::now();
  return Found{entry->state, InfoOf(*entry)};
}

absl::StatusOr<StateInfo> StateStore::Get(uint32_t flow,
                                          absl::string_view key) const {
  MutexLock lock(&mu_);
  RECURVE_ASSIGN_OR_RETURN(const Entry* entry,
                           const_cast<StateStore*>(this)->Need(flow, key));
  return InfoOf(*entry);
}

absl::StatusOr<std::vector<int32_t>> StateStore::TokensOf(
    uint32_t flow, absl::string_view key) const {
  SequenceStatePtr state;  // copied from without the lock: it may be long
  {
    MutexLock lock(&mu_);
    RECURVE_ASSIGN_OR_RETURN(const Entry* entry,
                             const_cast<StateStore*>(this)->Need(flow, key));
    state = entry->state;
  }
  return state->tokens;
}

absl::StatusOr<std::vector<StateInfo>> StateStore::Fork(
    const StateOwner& owner, const SequenceStatePtr& state, int count,
    uint64_t seed, const StateOptions& options) {
  MutexLock lock(&mu_);
  ExpireLocked();
  std::vector<StateInfo> children;
  for (int i = 0; i < count; ++i) {
    const absl::StatusOr<StateInfo> child =
        AddLocked(owner, state, options, DeriveSeed(seed, i), "");
    if (!child.ok()) {
      for (const StateInfo& made : children) Erase(made.id);
      return child.status();
    }
    children.push_back(*child);
  }
  return children;
}

absl::StatusOr<StateInfo> StateStore::Pin(uint32_t flow, absl::string_view key,
                                          const StateOptions& options) {
  MutexLock lock(&mu_);
  RECURVE_ASSIGN_OR_RETURN(Entry * entry, Need(flow, key));
  if (!options.name.empty() && options.name != entry->name) {
    RECURVE_RETURN_IF_ERROR(CheckNameLocked(flow, options.name));
    if (!entry->name.empty()) names_.erase({flow, entry->name});
    entry->name = options.name;
    names_[{flow, entry->name}] = entry->id;
  }
  if (options.ttl_seconds) entry->ttl_seconds = *options.ttl_seconds;
  entry->pinned = options.pinned;
  entry->used = Clock::now();
  return InfoOf(*entry);
}

void StateStore::UndoPin(uint32_t flow, const StateInfo& before) {
  MutexLock lock(&mu_);
  const auto found = entries_.find(before.id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.name != before.name &&
      (before.name.empty() || CheckNameLocked(flow, before.name).ok())) {
    if (!entry.name.empty()) names_.erase({flow, entry.name});
    entry.name = before.name;
    if (!entry.name.empty()) names_[{flow, entry.name}] = entry.id;
  }
  if (!before.pinned) entry.ttl_seconds = before.ttl_seconds;
  entry.pinned = before.pinned;
}

void StateStore::SetStored(absl::string_view id, bool stored) {
  MutexLock lock(&mu_);
  const auto found = entries_.find(id);
  if (found != entries_.end()) found->second.stored = stored;
}

bool StateStore::IsPinned(absl::string_view id) const {
  MutexLock lock(&mu_);
  const auto found = entries_.find(id);
  return found != entries_.end() && found->second.pinned;
}

absl::StatusOr<StateInfo> StateStore::Release(uint32_t flow,
                                              absl::string_view key) {
  MutexLock lock(&mu_);
  RECURVE_ASSIGN_OR_RETURN(Entry * entry, Need(flow, key));
  const StateInfo info = InfoOf(*entry);
  Erase(info.id);
  return info;
}

StateStore::Listing StateStore::List(const StateOwner& owner) const {
  MutexLock lock(&mu_);
  Listing listing;
  std::vector<const Entry*> own;
  const auto now = Clock::now();
  for (const auto& [id, entry] : entries_) {
    if (entry.flow == owner.flow && !IsOver(entry, now)) own.push_back(&entry);
  }
  std::sort(own.begin(), own.end(), [](const Entry* a, const Entry* b) {
    return a->number > b->number;
  });
  for (const Entry* entry : own) listing.states.push_back(InfoOf(*entry));
  const auto of_flow = of_flow_.find(owner.flow);
  if (of_flow != of_flow_.end()) listing.bytes = of_flow->second.bytes;
  listing.max_bytes =
      owner.max_bytes > 0 ? std::min(owner.max_bytes, max_bytes_) : max_bytes_;
  return listing;
}

StateInfo StateStore::InfoOf(const Entry& entry) const {
  StateInfo info;
  info.id = entry.id;
  info.name = entry.name;
  info.tokens = entry.state->num_tokens();
  info.computed_tokens = entry.state->computed.tokens;
  info.bytes = Alone(*entry.state);
  info.seed = entry.seed;
  info.pinned = entry.pinned;
  info.stored = entry.stored;
  info.ttl_seconds = entry.pinned ? 0 : entry.ttl_seconds;
  info.age_seconds =
      std::chrono::duration<double>(Clock::now() - entry.made).count();
  info.parent = entry.parent;
  return info;
}

bool StateStore::IsOver(const Entry& entry, Clock::time_point now) {
  return !entry.pinned &&
         std::chrono::duration<double>(now - entry.used).count() >
             entry.ttl_seconds;
}

void StateStore::Erase(const std::string& id) {
  const auto found = entries_.find(id);
  const Entry& entry = found->second;
  Count(all_, *entry.state, /*add=*/false);
  const auto of_flow = of_flow_.find(entry.flow);
  Count(of_flow->second, *entry.state, /*add=*/false);
  if (of_flow->second.entries.empty() && of_flow->second.taken == 0) {
    of_flow_.erase(of_flow);
  }
  if (!entry.name.empty()) names_.erase({entry.flow, entry.name});
  entries_.erase(found);
  if (on_change_) on_change_();
}

void StateStore::ExpireLocked() {
  const auto now = Clock::now();
  std::vector<std::string> over;
  for (const auto& [id, entry] : entries_) {
    if (IsOver(entry, now)) over.push_back(id);
  }
  for (const std::string& id : over) Erase(id);
}

void StateStore::Expire() {
  MutexLock lock(&mu_);
  ExpireLocked();
}

void StateStore::Clear() {
  MutexLock lock(&mu_);
  names_.clear();
  all_ = {};
  of_flow_.clear();
  entries_.clear();
}

StateStore::Totals StateStore::totals() const {
  MutexLock lock(&mu_);
  return {static_cast<int64_t>(entries_.size()), all_.bytes};
}

}  // namespace recurve
