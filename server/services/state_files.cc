#include "server/services/state_files.h"

#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "server/services/state_transfer.h"
#include "spdlog/spdlog.h"

namespace recurve {

absl::StatusOr<std::unique_ptr<StateFiles>> StateFiles::Open(Options options) {
  RECURVE_RETURN_IF_ERROR(options.engine->CheckStates());
  std::unique_ptr<StateFiles> files(new StateFiles(std::move(options)));
  RECURVE_ASSIGN_OR_RETURN(files->dir_, StateDir::Open(files->options_.path));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                           files->dir_->List());
  size_t restored = 0;
  for (const std::string& id : ids) {
    const absl::Status status = files->Restore(id);
    restored += status.ok();
    if (!status.ok()) {
      spdlog::warn("the state {} is not brought back: {}", id,
                   std::string(status.message()));
    }
  }
  spdlog::info("--state-dir {}: {} of {} states brought back",
               files->options_.path, restored, ids.size());
  RECURVE_ASSIGN_OR_RETURN(
      files->thread_,
      StartThread("states on disk", [f = files.get()] { f->Loop(); }));
  return files;
}

StateFiles::~StateFiles() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status StateFiles::Restore(const std::string& id) {
  Engine& engine = *options_.engine;
  StateOwner owner;
  SequenceStatePtr state;
  std::vector<absl::Span<char>> blocks;
  v1::StateHeader of;
  StateReader reader(
      [&](v1::StateHeader header) -> absl::StatusOr<StateReader::BlockSink> {
        if ((options_.tenants == nullptr) != header.tenant().empty()) {
          return absl::FailedPreconditionError(
              header.tenant().empty()
                  ? "it has no tenant, and this server has tenants"
                  : "it has a tenant, and this server has none");
        }
        if (options_.tenants != nullptr) {
          const auto tenant = options_.tenants->Find(header.tenant());
          if (tenant == nullptr) {
            return absl::FailedPreconditionError(
                absl::StrCat("its tenant, ", header.tenant(),
                             ", is not in --api-keys-file"));
          }
          owner = {tenant->flow().id, tenant->max_state_bytes()};
        }
        RECURVE_ASSIGN_OR_RETURN(
            SequenceState value,
            CheckedState(header, options_.fingerprint, engine));
        std::promise<absl::StatusOr<SequenceStatePtr>> made;
        engine.MakeState(
            std::move(value), static_cast<int64_t>(header.computed_tokens()),
            [&](auto result) { made.set_value(std::move(result)); });
        RECURVE_ASSIGN_OR_RETURN(state, made.get_future().get());
        RECURVE_ASSIGN_OR_RETURN(blocks, engine.BlocksOf(*state));
        of = std::move(header);
        return StateReader::BlockSink(
            [&blocks](int64_t block) { return blocks[block]; });
      });
  RECURVE_RETURN_IF_ERROR(dir_->Read(id, reader));
  std::optional<uint64_t> seed;
  if (of.has_seed()) seed = of.seed();
  StateOptions keep;
  keep.name = of.name();
  keep.pinned = true;
  RECURVE_RETURN_IF_ERROR(
      engine.states().Add(owner, std::move(state), keep, seed, id).status());
  engine.states().SetStored(id, true);
  return absl::OkStatus();
}

void StateFiles::Write(uint32_t flow, const std::string& tenant,
                       const std::string& id,
                       std::function<void(absl::Status)> done) {
  Add([this, flow, tenant, id, done = std::move(done)](bool stopping) {
    done(stopping ? absl::UnavailableError("the server is shutting down")
                  : WriteNow(flow, tenant, id));
  });
}

absl::Status StateFiles::WriteNow(uint32_t flow, const std::string& tenant,
                                  const std::string& id) {
  Engine& engine = *options_.engine;
  RECURVE_ASSIGN_OR_RETURN(StateStore::Found found,
                           engine.states().Use(flow, id));
  // A later call may have changed that.
  if (!found.info.pinned) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(const std::unique_ptr<StateExport> bytes,
                           StateExport::Make(engine, options_.fingerprint,
                                             std::move(found), tenant));
  if (absl::Status status = dir_->Write(id, bytes->writer()); !status.ok()) {
    spdlog::error("the state {} cannot be written: {}", id,
                  std::string(status.message()));
    return absl::Status(
        status.code(),
        absl::StrCat("the state cannot be pinned, because it cannot be "
                     "written: ",
                     status.message()));
  }
  engine.states().SetStored(id, true);
  return absl::OkStatus();
}

void StateFiles::Remove(const std::string& id) {
  Add([this, id](bool) {
    if (options_.engine->states().IsPinned(id)) return;  // again
    options_.engine->states().SetStored(id, false);
    if (absl::Status status = dir_->Remove(id); !status.ok()) {
      spdlog::error("the file of the state {} cannot be removed: {}", id,
                    std::string(status.message()));
    }
  });
}

void StateFiles::Add(std::function<void(bool)> work) {
  {
    MutexLock lock(&mu_);
    work_.push_back(std::move(work));
  }
  changed_.NotifyAll();
}

void StateFiles::Loop() {
  while (true) {
    std::function<void(bool)> work;
    bool stopping;
    {
      MutexLock lock(&mu_);
      while (work_.empty() && !stop_) changed_.Wait(&mu_);
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
      stopping = stop_;
    }
    work(stopping);
  }
}

}  // namespace recurve
