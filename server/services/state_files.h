#ifndef RECURVE_SERVER_SERVICES_STATE_FILES_H_
#define RECURVE_SERVER_SERVICES_STATE_FILES_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/serving/engine.h"
#include "recurve/v1/state.pb.h"
#include "server/states/state_dir.h"
#include "server/tenants/tenants.h"

namespace recurve {

// Keeps the pinned states of a server in the folder of --state-dir. A thread
// writes and removes files, in the order of the calls.
//
// Thread safety: all methods may be called from any thread.
class StateFiles {
 public:
  struct Options {
    std::string path;
    Engine* engine;
    v1::StateFingerprint fingerprint;
    Tenants* tenants = nullptr;  // null: a server without keys
  };
  // Opens the folder and brings back the states in it, pinned, under their ids.
  // One that cannot be brought back (another model, other arithmetic, damage,
  // no room, no such tenant) stays in the folder, and the log says why.
  // `engine` outlives the object.
  static absl::StatusOr<std::unique_ptr<StateFiles>> Open(Options options);
  // Removes what was asked for; fails writes that have not begun.
  ~StateFiles();
  StateFiles(const StateFiles&) = delete;
  StateFiles& operator=(const StateFiles&) = delete;

  // Writes a state, and marks it as stored; then calls `done`. `tenant`: its
  // owner's name; empty on a server without keys.
  void Write(uint32_t flow, const std::string& tenant, const std::string& id,
             std::function<void(absl::Status)> done);
  // Removes its file, if there is one.
  void Remove(const std::string& id);

 private:
  explicit StateFiles(Options options) : options_(std::move(options)) {}
  absl::Status Restore(const std::string& id);
  absl::Status WriteNow(uint32_t flow, const std::string& tenant,
                        const std::string& id);
  // Its argument: the server stops, so that nothing is to be written.
  void Add(std::function<void(bool)> work);
  void Loop();

  const Options options_;
  std::unique_ptr<StateDir> dir_;  // Open, then the thread alone
  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void(bool)>> work_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_STATE_FILES_H_
