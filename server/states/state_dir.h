#ifndef RECURVE_SERVER_STATES_STATE_DIR_H_
#define RECURVE_SERVER_STATES_STATE_DIR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/states/state_wire.h"

namespace recurve {

// The folder of --state-dir: each state in a file ID.state, of the bytes of
// state_wire.h. An ID is 32 lower-case hexadecimal digits; other files are left
// alone.
//
// A file has its name only once it is whole and on the disk: a process or a
// machine that stops leaves at most ID.tmp, which the next Open removes.
//
// Errors name the path and the system's reason: ResourceExhausted if the disk
// or a quota is full, NotFound for a missing file, else Internal.
//
// All methods wait for the disk. Thread-compatible.
class StateDir {
 public:
  // Makes the folder, for this user alone, if it is missing; what contains it
  // must be there. FailedPrecondition if it is not a folder in which files can
  // be made, or if a process has it open: the file `lock` in it is locked until
  // this ends.
  static absl::StatusOr<std::unique_ptr<StateDir>> Open(std::string path);
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  // Writes all that the writer, of which nothing has been taken, gives. Once
  // this is OK, the state is there after a power failure, too. A file that the
  // ID has already is replaced; after an error it is still there. Only if the
  // folder cannot be synced, the last step, the new file may be.
  absl::Status Write(absl::string_view id, StateWriter& writer);

  // OK also if there is no such file.
  absl::Status Remove(absl::string_view id);

  // The IDs of all files, sorted.
  absl::StatusOr<std::vector<std::string>> List() const;

  // Passes the file through the reader, to its Finish. The reader's errors keep
  // their code; their messages begin with the path.
  absl::Status Read(absl::string_view id, StateReader& reader) const;

  const std::string& path() const { return path_; }

 private:
  // Takes ownership of the descriptor.
  StateDir(std::string path, int dir_fd)
      : path_(std::move(path)), dir_fd_(dir_fd) {}
  absl::Status Lock();
  absl::Status CheckWritable() const;
  absl::Status NoFileCanBeMade(int code) const;
  absl::Status RemoveTemporaries() const;
  absl::Status WriteFile(const std::string& name, StateWriter& writer) const;
  absl::Status Sync() const;
  absl::Status SyncParent() const;
  absl::StatusOr<std::vector<std::string>> Names(
      absl::string_view suffix) const;
  // The error for `name` in the folder and `code` (errno).
  absl::Status Failed(absl::string_view name, absl::string_view what,
                      int code) const;

  const std::string path_;
  const int dir_fd_;
  int lock_fd_ = -1;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_STATES_STATE_DIR_H_
