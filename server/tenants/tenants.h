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

// The time to come again after a refusal that will be repeated each time: what
// is asked for is more than the tenant may ever have.
inline constexpr std::chrono::milliseconds kNeverRetry{-1};

// One of those who may call, with what it uses now. Thread-safe.
class Tenant {
 public:
  // `flow` is what the engine knows it by. `metrics` outlives the tenant.
  Tenant(std::string name, uint32_t flow, Metrics* metrics);

  const std::string& name() const { return name_; }
  bool admin() const;
  // Weight and part as of now.
  Flow flow() const;
  // What is in use stays in use, also where it is above the new limits.
  // `weights`: the sum of all tenants'.
  void Configure(const TenantEntry& entry, int64_t weights);

  // PermissionDenied if it is none. `what` says what needs one.
  absl::Status CheckAdmin(absl::string_view what);
  // PermissionDenied if its requests may not ask for this priority.
  absl::Status CheckPriority(int32_t priority);

  // What it has in use, and has used.
  struct Usage {
    int64_t streams = 0;
    int64_t pages = 0;
    int64_t prompt_tokens = 0;
    int64_t generated_tokens = 0;
  };
  Usage usage() const;

  // Takes `count` of the tenant's streams, or none: ResourceExhausted when so
  // many are not left. `*retry_after` is then when to come again.
  absl::Status OpenStreams(int64_t count,
                           std::chrono::milliseconds* retry_after);
  void CloseStream();

  // Takes pages for streams that then have `total`; ResourceExhausted when so
  // many are not left. `*retry_after` is then when to come again.
  absl::Status TakePages(int64_t count, int64_t total,
                         std::chrono::milliseconds* retry_after);
  void GivePages(int64_t count);

  // Takes tokens off the tenant's rate. Returns how many were taken: all, or
  // none where there is no limit. ResourceExhausted when there are not enough
  // now; `*retry_after` is then when there will be.
  absl::StatusOr<int64_t> TakeTokens(int64_t count,
                                     std::chrono::milliseconds* retry_after);
  void GiveTokens(int64_t count);

  // Tokens of prompts that were accepted; negative, of one that was not, after
  // all.
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

// What one call uses of its tenant; gives it back at the latest when destroyed.
// An empty one, of a server without keys, limits nothing. Not thread-safe.
class StreamTicket {
 public:
  StreamTicket() = default;
  // The tenant has opened a stream, which is the ticket's from now on.
  explicit StreamTicket(std::shared_ptr<Tenant> tenant)
      : tenant_(std::move(tenant)) {}
  ~StreamTicket() { Close(); }
  StreamTicket(const StreamTicket&) = delete;
  StreamTicket& operator=(const StreamTicket&) = delete;
  StreamTicket(StreamTicket&&) = default;
  StreamTicket& operator=(StreamTicket&& other) noexcept;

  // That of the tenant, or of a server without keys.
  Flow flow() const { return tenant_ == nullptr ? Flow() : tenant_->flow(); }
  // As Tenant's.
  absl::Status CheckPriority(int32_t priority) const {
    return tenant_ == nullptr ? absl::OkStatus()
                              : tenant_->CheckPriority(priority);
  }

  // Takes the tokens of a command, what it appends and all that it may
  // generate, off the tenant's rate, and the pages that the sequence then has.
  // Errors as Tenant::TakeTokens and TakePages.
  absl::Status Charge(int64_t append, int64_t generate,
                      std::chrono::milliseconds* retry_after);
  struct Cost {
    int64_t append = 0;
    int64_t generate = 0;
  };
  // As Charge, of a command for each ticket, all of one tenant or empty: of all
  // or of none. To the rate it is one taking.
  static absl::Status ChargeAll(absl::Span<StreamTicket* const> tickets,
                                absl::Span<const Cost> costs,
                                std::chrono::milliseconds* retry_after);
  // One token of the command was generated.
  void CountToken() {
    if (tenant_ != nullptr) tenant_->CountToken();
    if (unused_ > 0) --unused_;
  }
  // The command is done: gives back what it did not generate.
  void Settle();
  // The command was refused: gives back all of it.
  void Refund();
  // Settles, and gives the pages and the stream back.
  void Close();

 private:
  // Gives back the pages beyond those of `tokens` tokens.
  void ShrinkTo(int64_t tokens);

  std::shared_ptr<Tenant> tenant_;  // null: nothing is held
  int64_t charged_ = 0;             // to the rate, for the command at work
  int64_t unused_ = 0;              // tokens that the command may yet generate
  int64_t before_ = 0;              // tokens of the sequence before the command
  int64_t tokens_ = 0;  // tokens of the sequence, those of `unused_` included
  int64_t pages_ = 0;   // taken
  bool admitted_ = false;  // a command was
};

// The tenants of a keys file, and who of them a call is from.
//
// Thread safety: all methods but ReloadIfChanged may be called from any thread.
class Tenants {
 public:
  // InvalidArgument, with the file and what is wrong, when it cannot be used.
  // `metrics` outlives the object and all tickets.
  static absl::StatusOr<std::unique_ptr<Tenants>> Load(const std::string& path,
                                                       Metrics* metrics);

  // The tenant whose key is in `headers`, the values of all authorization
  // headers ("Bearer KEY"); `entry` is what an error calls one. Unauthenticated
  // when there is none or it is not known. Takes the same time whichever key it
  // is.
  absl::StatusOr<std::shared_ptr<Tenant>> Authenticate(
      absl::Span<const std::string> headers, absl::string_view entry);
  // As Authenticate, over gRPC; ResourceExhausted if the tenant has no stream
  // left, with when to come again.
  absl::StatusOr<StreamTicket> OpenStream(
      absl::Span<const std::string> headers,
      std::chrono::milliseconds* retry_after);
  // Reads the file again if it has changed; one that cannot be used leaves all
  // as it is, and the log says why. Streams of tenants that are gone run on.
  // Call it from one thread.
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
  // Reads the file and makes it count.
  absl::Status Read();

  const std::string path_;
  Metrics* const metrics_;
  // Of the file that was last tried; nothing when it was not there.
  std::optional<FileVersion> version_;
  // Also those that are no longer in the file: what they use is not forgotten
  // when they come back.
  std::map<std::string, std::shared_ptr<Tenant>> all_;

  Mutex mu_;
  std::shared_ptr<const std::vector<Key>> keys_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TENANTS_TENANTS_H_
