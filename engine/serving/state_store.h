#ifndef RECURVE_ENGINE_SERVING_STATE_STORE_H_
#define RECURVE_ENGINE_SERVING_STATE_STORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "engine/serving/sequence_state.h"

namespace recurve {

inline constexpr int kMaxStateNameBytes = 128;
inline constexpr int kMaxForks = 16;
inline constexpr double kDefaultStateTtl = 600;      // seconds
inline constexpr double kMaxStateTtl = 7 * 86400.0;  // seconds

// Whose states, and how much memory they may take.
struct StateOwner {
  uint32_t flow = 0;
  int64_t max_bytes = 0;  // 0: as much as all states together
};

struct StateOptions {
  std::string name;  // empty: none
  std::optional<double> ttl_seconds;
  bool pinned = false;
  // The id of the state that it comes from; empty: none. Not a client's to set.
  std::string parent = {};
};

// InvalidArgument naming field, value and limit; fields are in front of
// `prefix`.
absl::Status ValidateStateOptions(const StateOptions& options,
                                  absl::string_view prefix);

struct StateInfo {
  std::string id;
  std::string name;
  int64_t tokens = 0;
  int64_t computed_tokens = 0;
  int64_t bytes = 0;  // alone; other states may share them
  std::optional<uint64_t> seed;
  bool pinned = false;
  bool stored = false;
  double ttl_seconds = 0;  // 0: pinned
  double age_seconds = 0;
  std::string parent;
};

// The states that clients have named, by owner. An owner finds its own only.
//
// A state that is not pinned is released when it was not used for its time to
// live: at the next call, or Expire. Nothing else makes room: a state that does
// not fit is refused.
//
// Memory: a state takes its blocks, some bytes a token, the logits of its last
// one, and kEntryBytes. States with blocks in common take them once; so do
// entries of one SequenceState.
//
// Thread safety: all methods may be called from any thread.
class StateStore {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int64_t kEntryBytes = 512;
  // More would make the calls slow, which look at all of them.
  static constexpr int64_t kMaxStatesOfOwner = 4096;
  static constexpr int64_t kMaxStates = 16384;

  // The limit of all states together, and the size of a block of host memory.
  // `on_change` is called after each change, under the store's lock; may be
  // null.
  StateStore(int64_t max_bytes, int64_t block_bytes,
             std::function<void()> on_change = nullptr);

  // Adds a state under a new id, or under `id` if that is not empty.
  // ResourceExhausted if it does not fit or its name is taken. REQUIRES: the
  // options are valid.
  absl::StatusOr<StateInfo> Add(const StateOwner& owner, SequenceStatePtr state,
                                const StateOptions& options,
                                std::optional<uint64_t> seed,
                                std::string id = "");
  // Keeps room for a state that is on its way, or ResourceExhausted, as Add;
  // and gives it back.
  absl::Status TakeRoom(const StateOwner& owner, int64_t bytes);
  void GiveRoom(const StateOwner& owner, int64_t bytes);

  // In the following, `key` is an id or a name. NotFound if the owner has no
  // such state.

  struct Found {
    SequenceStatePtr state;
    StateInfo info;
  };
  // A use: starts the time to live again.
  absl::StatusOr<Found> Use(uint32_t flow, absl::string_view key);
  // The following are no uses.
  absl::StatusOr<StateInfo> Get(uint32_t flow, absl::string_view key) const;
  absl::StatusOr<std::vector<int32_t>> TokensOf(uint32_t flow,
                                                absl::string_view key) const;
  // `count` more states of `state`, each with a seed derived from `seed`; they
  // share its memory. All or none. REQUIRES: 1 <= count <= kMaxForks; options
  // are valid and have no name.
  absl::StatusOr<std::vector<StateInfo>> Fork(const StateOwner& owner,
                                              const SequenceStatePtr& state,
                                              int count, uint64_t seed,
                                              const StateOptions& options);
  // Changes what is set of the options, and whether it is pinned.
  absl::StatusOr<StateInfo> Pin(uint32_t flow, absl::string_view key,
                                const StateOptions& options);
  // The state is on disk, or no longer. No effect if it is gone.
  void SetStored(absl::string_view id, bool stored);
  // Takes back what a Pin changed of the state that was as `before`, if it is
  // still there; its name only if that is free.
  void UndoPin(uint32_t flow, const StateInfo& before);
  // Whether there is a state of any owner with this id that is pinned.
  bool IsPinned(absl::string_view id) const;
  // Returns what it was.
  absl::StatusOr<StateInfo> Release(uint32_t flow, absl::string_view key);

  struct Listing {
    std::vector<StateInfo> states;  // the latest first
    int64_t bytes = 0;
    int64_t max_bytes = 0;
  };
  Listing List(const StateOwner& owner) const;

  void Expire();
  void Clear();

  struct Totals {
    int64_t states = 0;
    int64_t bytes = 0;
  };
  Totals totals() const;
  int64_t max_bytes() const { return max_bytes_; }

 private:
  struct Entry {
    std::string id;
    uint32_t flow;
    std::string name;
    SequenceStatePtr state;
    std::optional<uint64_t> seed;
    bool pinned;
    bool stored = false;
    double ttl_seconds;
    uint64_t number;  // in the order of Add
    Clock::time_point made;
    Clock::time_point used;
    std::string parent;
  };
  // What a set of states takes.
  struct Bytes {
    std::unordered_map<int32_t, int64_t> blocks;                // holders
    std::unordered_map<const SequenceState*, int64_t> entries;  // likewise
    int64_t states = 0;
    int64_t bytes = 0;
    int64_t taken = 0;  // of these, room
  };

  int64_t Alone(const SequenceState& state) const;
  // What adding `state` once more would take.
  int64_t More(const Bytes& bytes, const SequenceState& state) const;
  void Count(Bytes& bytes, const SequenceState& state, bool add) const;
  absl::Status CheckRoomLocked(const StateOwner& owner, int64_t of_owner,
                               int64_t of_all) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckNameLocked(uint32_t flow, absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<StateInfo> AddLocked(const StateOwner& owner,
                                      SequenceStatePtr state,
                                      const StateOptions& options,
                                      std::optional<uint64_t> seed,
                                      std::string id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null: none.
  const Entry* Find(uint32_t flow, absl::string_view key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Entry*> Need(uint32_t flow, absl::string_view key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StateInfo InfoOf(const Entry& entry) const;
  void Erase(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static bool IsOver(const Entry& entry, Clock::time_point now);

  const int64_t max_bytes_;
  const int64_t block_bytes_;
  const std::function<void()> on_change_;
  mutable Mutex mu_;
  std::map<std::string, Entry, std::less<>> entries_
      ABSL_GUARDED_BY(mu_);  // by id
  std::map<std::pair<uint32_t, std::string>, std::string> names_
      ABSL_GUARDED_BY(mu_);  // to ids
  Bytes all_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Bytes> of_flow_ ABSL_GUARDED_BY(mu_);
  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_STATE_STORE_H_
