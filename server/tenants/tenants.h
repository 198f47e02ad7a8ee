#ifndef RECURVE_SERVER_TENANTS_TENANTS_H_
#define RECURVE_SERVER_TENANTS_TENANTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "engine/serving/request.h"
#include "server/telemetry/metrics.h"
#include "server/tenants/api_keys.h"
#include "server/tenants/token_bucket.h"

namespace recurve {

// Retry hint: never, because the request exceeds the quota itself.
inline constexpr std::chrono::milliseconds kNeverRetry{-1};

// A tenant and its current usage. Thread-safe.
class Tenant {
 public:
  // `flow` is its id in the engine. `metrics` outlives the tenant.
  Tenant(std::string name, uint32_t flow, Metrics* metrics);

  const std::string& name() const { return name_; }
  bool admin() const;
  // Current weight and part.
  Flow flow() const;
  // Current usage is kept, even above the new limits. `weights`: the sum over
  // all tenants.
  void Configure(const TenantEntry& entry, int64_t weights);

  // PermissionDenied unless it is an admin. `what` is the operation that needs
  // one.
  absl::Status CheckAdmin(absl::string_view what);
  // PermissionDenied if its requests may not use this priority.
  absl::Status CheckPriority(int32_t priority);
  // The limit of its states (state_store.h); 0: none of its own.
  int64_t max_state_bytes() const;

  // Current and total usage.
  struct Usage {
    int64_t streams = 0;
    int64_t pages = 0;
    int64_t prompt_tokens = 0;
    int64_t generated_tokens = 0;
  };
  Usage usage() const;

  // Opens `count` of the tenant's streams, or none: ResourceExhausted if fewer
  // are left. `*retry_after` is then the retry hint; `own`: those that the
  // request has, which it would have again.
  absl::Status OpenStreams(int64_t count,
                           std::chrono::milliseconds* retry_after,
                           int64_t own = 0);
  void CloseStream();

  // Takes pages for streams that then have `total`; ResourceExhausted if fewer
  // are left. `*retry_after` is then the retry hint.
  absl::Status TakePages(int64_t count, int64_t total,
                         std::chrono::milliseconds* retry_after);
  void GivePages(int64_t count);

  // Charges tokens to the tenant's rate. Returns how many were charged: all, or
  // none if there is no limit. ResourceExhausted if not enough are available;
  // `*retry_after` is then the time until they are.
  absl::StatusOr<int64_t> TakeTokens(int64_t count,
                                     std::chrono::milliseconds* retry_after);
  void GiveTokens(int64_t count);

  // Counts prompt tokens that were accepted; negative to undo that.
  void CountPrompt(int64_t tokens) { prompt_tokens_ += tokens; }
  void CountToken() { ++generated_tokens_; }

  Metrics& metrics() { return *metrics_; }

 private:
  const std::string name_;
  const uint32_t flow_;
  Metrics* const metrics_;
  std::atomic<int64_t> prompt_tokens_{0};
  std::atomic<int64_t> generated_tokens_{0};
  mutable Mutex mu_;
  double part_ ABSL_GUARDED_BY(mu_) = 1;
  bool admin_ ABSL_GUARDED_BY(mu_) = false;
  TenantLimits limits_ ABSL_GUARDED_BY(mu_);
  int64_t streams_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pages_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<TokenBucket> bucket_ ABSL_GUARDED_BY(mu_);
};

// One call's usage of its tenant; returns it at the latest when destroyed. An
// empty ticket, of a server without keys, has no limits. Not thread-safe.
class StreamTicket {
 public:
  StreamTicket() = default;
  // Takes over a stream that the tenant has opened.
  explicit StreamTicket(std::shared_ptr<Tenant> tenant)
      : tenant_(std::move(tenant)) {}
  ~StreamTicket() { Close(); }
  StreamTicket(const StreamTicket&) = delete;
  StreamTicket& operator=(const StreamTicket&) = delete;
  StreamTicket(StreamTicket&&) = default;
  StreamTicket& operator=(StreamTicket&& other) noexcept;

  // The tenant's flow, or that of a server without keys.
  Flow flow() const { return tenant_ == nullptr ? Flow() : tenant_->flow(); }
  // See Tenant.
  absl::Status CheckPriority(int32_t priority) const {
    return tenant_ == nullptr ? absl::OkStatus()
                              : tenant_->CheckPriority(priority);
  }

  // The sequence has these tokens before its first command, which then takes
  // their pages, too.
  void StartFrom(int64_t tokens) { before_ = tokens_ = tokens; }
  // Charges the tokens of a command (those it appends and all that it may
  // generate) to the tenant's rate, and takes the pages that the sequence then
  // needs. Errors as Tenant::TakeTokens and TakePages.
  absl::Status Charge(int64_t append, int64_t generate,
                      std::chrono::milliseconds* retry_after);
  struct Cost {
    int64_t append = 0;
    int64_t generate = 0;
  };
  // As Charge, for a command of each ticket, all of one tenant or empty:
  // charges all or none. For the rate it is a single charge.
  static absl::Status ChargeAll(absl::Span<StreamTicket* const> tickets,
                                absl::Span<const Cost> costs,
                                std::chrono::milliseconds* retry_after);
  // One token of the command was generated.
  void CountToken() {
    if (tenant_ != nullptr) tenant_->CountToken();
    if (unused_ > 0) --unused_;
  }
  // The command is done: returns the tokens it did not generate.
  void Settle();
  // The sequence goes back to its first `tokens`: returns the pages of the
  // others. Between two commands.
  void RollBack(int64_t tokens);
  // The command was refused: returns all of its tokens.
  void Refund();
  // Settles, and returns the pages and the stream.
  void Close();

 private:
  // Returns the pages not needed for `tokens` tokens.
  void ShrinkTo(int64_t tokens);

  std::shared_ptr<Tenant> tenant_;  // null: nothing is held
  int64_t charged_ = 0;             // to the rate, for the current command
  int64_t unused_ = 0;              // tokens that the command may still
                                    // generate
  int64_t before_ = 0;              // tokens of the sequence before the command
  int64_t tokens_ = 0;     // tokens of the sequence, including `unused_`
  int64_t pages_ = 0;      // pages held
  bool admitted_ = false;  // a command was admitted
};

// The tenants of a keys file; identifies the tenant of a call.
//
// Thread safety: all methods but ReloadIfChanged may be called from any thread.
class Tenants {
 public:
  // InvalidArgument, with the file and the error, if it cannot be used.
  // `metrics` outlives the object and all tickets.
  static absl::StatusOr<std::unique_ptr<Tenants>> Load(const std::string& path,
                                                       Metrics* metrics);

  // The tenant whose key is in `headers`, the values of all authorization
  // headers ("Bearer KEY"); `entry` is the name of a header in errors.
  // Unauthenticated if there is none or it is unknown. Takes the same time for
  // every key.
  absl::StatusOr<std::shared_ptr<Tenant>> Authenticate(
      absl::Span<const std::string> headers, absl::string_view entry);
  // The tenant of this name; null: none.
  std::shared_ptr<Tenant> Find(const std::string& name) const;
  // Reads the file again if it has changed; an unusable one changes nothing and
  // is reported in the log. Streams of removed tenants continue. To be called
  // from one thread.
  void ReloadIfChanged();

 private:
  // Device, inode, size, modification and status change in nanoseconds.
  using FileVersion = std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t>;
  struct Key {
    KeyDigest digest;
    std::shared_ptr<Tenant> tenant;
  };

  Tenants(std::string path, Metrics* metrics)
      : path_(std::move(path)), metrics_(metrics) {}
  absl::StatusOr<FileVersion> Version() const;
  // Reads and applies the file.
  absl::Status Read();

  const std::string path_;
  Metrics* const metrics_;
  // Version of the file last read; nothing if it was missing.
  std::optional<FileVersion> version_;
  // Including those no longer in the file: their usage is kept if they come
  // back.
  std::map<std::string, std::shared_ptr<Tenant>> all_;

  mutable Mutex mu_;
  std::shared_ptr<const std::vector<Key>> keys_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TENANTS_TENANTS_H_
