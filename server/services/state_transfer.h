#ifndef RECURVE_SERVER_SERVICES_STATE_TRANSFER_H_
#define RECURVE_SERVER_SERVICES_STATE_TRANSFER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/loading/fingerprint.h"
#include "engine/serving/engine.h"
#include "recurve/v1/state.pb.h"
#include "server/states/state_wire.h"

namespace recurve {

// All of what decides whether a state can be continued here.
v1::StateFingerprint FingerprintOf(const Engine& engine,
                                   const Fingerprint& loaded);

// The value that an untrusted header describes, without what is computed of it.
// FailedPrecondition or InvalidArgument if this server cannot continue it.
absl::StatusOr<SequenceState> CheckedState(const v1::StateHeader& header,
                                           const v1::StateFingerprint& ours,
                                           const Engine& engine);

// The bytes of a state, which it holds. Not thread-safe.
class StateExport {
 public:
  // Waits for copies of its memory that are in progress.
  static absl::StatusOr<std::unique_ptr<StateExport>> Make(
      const Engine& engine, const v1::StateFingerprint& fingerprint,
      StateStore::Found found, const std::string& tenant = "");

  StateWriter& writer() { return *writer_; }

 private:
  StateExport() = default;
  absl::Span<const char> Block(int64_t index);

  CacheSpec spec_;
  SequenceStatePtr state_;
  std::vector<absl::Span<char>> blocks_;
  std::string tail_;  // the last block of the slot, without what is behind it
  std::optional<StateWriter> writer_;
};

// A state that comes as bytes. Not thread-safe.
class StateImport {
 public:
  // Both outlive it.
  StateImport(Engine* engine, const v1::StateFingerprint* fingerprint,
              const StateOwner& owner)
      : engine_(engine),
        fingerprint_(fingerprint),
        owner_(owner),
        reader_(
            [this](v1::StateHeader header)
                -> absl::StatusOr<StateReader::BlockSink> {
              header_.emplace(std::move(header));
              return StateReader::BlockSink();  // comes with the memory
            },
            MaxHeaderBytes(*engine)) {}
  ~StateImport() { GiveRoom(); }
  StateImport(const StateImport&) = delete;
  StateImport& operator=(const StateImport&) = delete;

  absl::Status Append(absl::string_view bytes);
  // Its head has come, and it has no memory yet: TakeMemory comes next.
  bool wants_memory() const { return header_.has_value() && !asked_; }
  // Checks the head, and takes memory. Calls `done` on any thread; Append and
  // Finish may be called from then on.
  void TakeMemory(const std::function<void(absl::Status)>& done);
  // The state, whole and not published yet.
  absl::StatusOr<SequenceStatePtr> Finish();

  // REQUIRES: the head has come.
  const v1::StateHeader& header() const { return *header_; }

 private:
  // Those of the longest sequence that the engine takes.
  static int64_t MaxHeaderBytes(const Engine& engine);
  // Has the bytes that are there written to the memory.
  absl::Status Begin();
  void GiveRoom();

  Engine* const engine_;
  const v1::StateFingerprint* const fingerprint_;
  const StateOwner owner_;
  std::optional<v1::StateHeader> header_;
  StateReader reader_;
  bool asked_ = false;
  int64_t room_ = 0;  // taken from the owner's
  bool begun_ = false;
  SequenceStatePtr state_;
  std::vector<absl::Span<char>> blocks_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_STATE_TRANSFER_H_
